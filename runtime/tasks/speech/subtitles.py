"""Write segments or words as subtitles: SubRip (srt) and WebVTT (vtt)."""

from collections.abc import Sequence
from typing import Literal

from edgeformer.runtime.tasks.speech.transcript import Segment, Word

SubtitleFormat = Literal["srt", "vtt"]


def subtitles(segments: Sequence[Segment | Word], form: SubtitleFormat) -> str:
    """Return the content of a subtitle file, with a cue for each segment or word.

    Source of vtt: https://www.w3.org/TR/webvtt1, section 4.
    """
    cues = []
    for number, segment in enumerate(segments, 1):
        text = segment.text.replace("-->", "->")  # which would be read as times
        if form == "srt":
            cues.append(f"{number}\n{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}\n{text}\n")
        else:
            escaped = text.replace("&", "&amp;").replace("<", "&lt;")
            cues.append(f"{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}\n{escaped}\n")
    head = ["WEBVTT\n"] if form == "vtt" else []
    return "\n".join([*head, *cues])


def _clock(seconds: float, point: str) -> str:
    """Return a time as hours, minutes, seconds and milliseconds: 00:01:02.500."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{milliseconds:03}"
