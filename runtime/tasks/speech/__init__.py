"""How recordings become texts: the prompt of a speech model, the rules of its timestamps, and its windows.

`transcription.transcribe` says which runs of the model a recording needs, one after the other; whoever drives it
(`Seq2SeqLM`, the server) runs them.
"""

from edgeformer.runtime.tasks.speech.config import SpeechConfig
from edgeformer.runtime.tasks.speech.prompt import FRAMES_PER_SECOND, window_seconds
from edgeformer.runtime.tasks.speech.recording import Recording
from edgeformer.runtime.tasks.speech.subtitles import SubtitleFormat, subtitles
from edgeformer.runtime.tasks.speech.transcript import Segment, Transcript, Word
from edgeformer.runtime.tasks.speech.transcription import Runs, SpeechModel, Window, transcribe

__all__ = [
    "FRAMES_PER_SECOND",
    "Recording",
    "Runs",
    "Segment",
    "SpeechConfig",
    "SpeechModel",
    "SubtitleFormat",
    "Transcript",
    "Window",
    "Word",
    "subtitles",
    "transcribe",
    "window_seconds",
]
