//! Nodes' connections: the socket of each, and the table of sessions that outlive them. What a message means is
//! `sela_market`'s.

mod allowance;
pub(crate) mod socket;
pub(crate) mod table;

use sela_protocol::node::RefusalCode;

/// What a connection's socket is told to do.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// The Hello was taken: send this and begin to read frames.
    Admitted(String),
    /// Send this.
    Text(String),
    /// Say why and close.
    Close(Farewell),
}

/// Why a connection is closed. Shows as the WebSocket's close code and reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// The Hello was refused; the reply has said why.
    Refused(RefusalCode),
    /// The node broke the protocol after its Hello.
    ProtocolBroken(String),
    /// The node does not take what is sent to it.
    TooSlow,
    /// The node is back on another connection.
    Replaced,
    /// The exchange stops.
    Stopping,
}

impl Farewell {
    /// RFC 6455 §7.4.1.
    pub(crate) const fn code(&self) -> u16 {
        match self {
            Self::Refused(_) | Self::Replaced | Self::TooSlow => 1008,
            Self::ProtocolBroken(_) => 1002,
            Self::Stopping => 1001,
        }
    }

    /// For programs up to the colon, for people after it. At most 123 bytes fit a close frame.
    pub(crate) fn reason(&self) -> String {
        let mut reason = match self {
            Self::Refused(code) => format!("{}: see the reply before", code_name(*code)),
            Self::ProtocolBroken(why) => format!("protocol_broken: {why}"),
            Self::TooSlow => "too_slow: the node does not take what is sent to it; connect again".to_owned(),
            Self::Replaced => "replaced: this node is connected again elsewhere".to_owned(),
            Self::Stopping => "stopping: the exchange is being stopped; connect again later".to_owned(),
        };
        let mut end = reason.len().min(123);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        reason.truncate(end);
        reason
    }
}

/// As it is written on the wire.
const fn code_name(code: RefusalCode) -> &'static str {
    match code {
        RefusalCode::BadSignature => "bad_signature",
        RefusalCode::NotInvited => "not_invited",
        RefusalCode::ProtocolVersion => "protocol_version",
        RefusalCode::IdentityInUse => "identity_in_use",
        RefusalCode::ProtocolBroken => "protocol_broken",
        RefusalCode::Unknown => "unknown",
    }
}
