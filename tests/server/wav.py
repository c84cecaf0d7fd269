"""Recordings for requests."""

import io
import wave


def wav_file(samples, rate=16_000):
    """Return a WAV file of one channel; samples: int16 [N]."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples.tobytes())
    return file.getvalue()
