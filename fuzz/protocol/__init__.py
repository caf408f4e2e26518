"""What a campaign and its workers say to each other. Both sides import it; it needs nothing but the standard library."""

from fuzz.protocol.messages import (
    EAGER,
    NOISE,
    PROTOCOL_VERSION,
    REFERENCE,
    Check,
    Drawn,
    ErrorMap,
    Exit,
    Hello,
    Message,
    ProtocolError,
    Result,
    Stage,
    SubjectResult,
    Unusable,
    from_json,
    subject_result,
)
from fuzz.protocol.verdict import FINDINGS, Verdict

__all__ = [
    "EAGER",
    "FINDINGS",
    "NOISE",
    "PROTOCOL_VERSION",
    "REFERENCE",
    "Check",
    "Drawn",
    "ErrorMap",
    "Exit",
    "Hello",
    "Message",
    "ProtocolError",
    "Result",
    "Stage",
    "SubjectResult",
    "Unusable",
    "Verdict",
    "from_json",
    "subject_result",
]
