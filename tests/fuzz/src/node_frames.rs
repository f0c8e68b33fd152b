//! Target `node_frames`: what a node can send, from its Hello on, to an exchange with jobs in its queue: texts of any kind, messages in
//! their frames, meter notes that carry a good signature, connections that break and come back, and time that passes. Whatever comes,
//! the market has no defect to report, its books balance, a restart would bring them back, and a message counts once.

use crate::memory;
use crate::tape::{Tape, write_run};
use ed25519_dalek::SigningKey;
use sela_exchange::{Desk, Lab};
use sela_protocol::envelope::{Envelope, PublicKey};
use sela_protocol::job::JobSpec;
use sela_protocol::lease::MeterNote;
use sela_protocol::node::{Award, ExchangeMessage, Hello, HelloReply, NodeMessage, PROTOCOL, Resume};
use sela_protocol::session::Frame;
use serde_json::{Value, json};
use std::sync::LazyLock;

const NONCE: &str = "0123456789abcdef";
/// Most that one connection's life may take at once: a floor of some jobs, and what is said.
const MEMORY: usize = 16 << 20;
/// Steps of one input.
const STEPS: usize = 64;

/// For the one thread in which libFuzzer calls.
struct Place(Lab);

static LAB: LazyLock<std::sync::Mutex<Place>> = LazyLock::new(|| {
    let folder = std::path::PathBuf::from(format!("/dev/shm/sela-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder on a tmpfs");
    let spec = json!({ "image": { "type": "archive", "blob": format!("sha256:{}", "0".repeat(64)) },
        "cap": "0.600000", "budget": "1.000000", "wall_limit_ms": 600_000,
        "checkpoint": { "interval_ms": 1_000 } });
    let spec = JobSpec::parse(&spec.to_string()).expect("a good spec");
    let jobs = vec![spec; 3];
    std::sync::Mutex::new(Place(Lab::open(&folder, &jobs).expect("the lab opens")))
});

/// Lets a node live as an input says.
///
/// # Panics
/// If something does not hold.
pub fn hold(input: &[u8]) {
    let place = LAB.lock().expect("one thread at a time");
    let mut node = Node::at(&place.0);
    memory::at_most(MEMORY, || {
        let mut tape = Tape::new(input);
        for _ in 0..STEPS {
            if tape.is_empty() {
                break;
            }
            node.step(&mut tape);
        }
    });
    node.desk.check_the_books();
}

/// What a step of an input does.
const HELLO: u8 = 0;
const COME_BACK: u8 = 1;
const TEXT: u8 = 2;
const MESSAGE: u8 = 3;
const NOTE: u8 = 4;
const GONE: u8 = 5;
const PASS: u8 = 6;
const KINDS: u8 = 7;

struct Node {
    desk: Desk,
    key: SigningKey,
    invitation: String,
    connection: Option<u64>,
    /// The next frame's number.
    seq: u64,
    heard: u64,
    resume: Option<Resume>,
    node: String,
    award: Option<Box<Award>>,
}

impl Node {
    fn at(lab: &Lab) -> Self {
        Self {
            desk: lab.desk(),
            key: SigningKey::from_bytes(&[3; 32]),
            invitation: lab.invitation().to_owned(),
            connection: None,
            seq: 1,
            heard: 0,
            resume: None,
            node: String::new(),
            award: None,
        }
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.choice(KINDS) {
            HELLO => self.hello(None),
            COME_BACK => self.hello(self.resume),
            TEXT => {
                let text = String::from_utf8_lossy(tape.run()).into_owned();
                match self.connection {
                    Some(connection) => self.say(connection, &text),
                    None => self.greet(&text),
                }
            }
            MESSAGE => {
                let jump = tape.choice(4);
                let text = self.fill_in(tape.run());
                self.message(jump, &text);
            }
            NOTE => {
                let text = self.fill_in(tape.run());
                let note: Result<MeterNote, _> = serde_json::from_str(&text);
                if let Ok(note) = note {
                    let sealed = Envelope::seal(&note, &self.key).expect("a note is written");
                    assert_eq!(
                        sealed.open(&PublicKey::of(&self.key)),
                        Ok(note),
                        "what was sealed opens"
                    );
                    let message = serde_json::to_string(&NodeMessage::Meter(sealed)).expect("a message is written");
                    self.message(0, &message);
                }
            }
            GONE => {
                if let Some(connection) = self.connection.take() {
                    self.desk.gone(connection);
                }
            }
            _ => {
                // Up to some minutes, so that everything that runs out does.
                self.desk.pass(u32::from(tape.byte()) * u32::from(tape.byte()) * 4);
                self.hear();
            }
        }
    }

    fn hello(&mut self, resume: Option<Resume>) {
        let hello = Hello {
            protocol: PROTOCOL,
            nonce: NONCE.to_owned(),
            exchange: self.desk.key(),
            key: PublicKey::of(&self.key),
            invitation: Some(self.invitation.clone()),
            name: "a stranger".to_owned(),
            resume,
        };
        let sealed = Envelope::seal(&hello, &self.key).expect("a Hello is written");
        self.greet(&serde_json::to_string(&sealed).expect("an envelope is written"));
    }

    fn greet(&mut self, text: &str) {
        match self.desk.hello(text, NONCE) {
            Ok(connection) => {
                self.connection = Some(connection);
                self.hear();
            }
            Err((_, message)) => assert!(!message.is_empty() && message.len() <= 4_096 + text.len() * 16),
        }
    }

    fn message(&mut self, jump: u8, message: &str) {
        let Some(connection) = self.connection else { return };
        if let Ok(read) = serde_json::from_str::<NodeMessage>(message) {
            let again = serde_json::to_string(&read).expect("a message is written");
            assert_eq!(serde_json::from_str::<NodeMessage>(&again).expect(&again), read);
        }
        let (seq, ack) = match jump {
            0 | 1 => (self.seq, self.heard),
            2 => (self.seq.saturating_sub(1), 0),
            _ => (self.seq + 1, self.heard + 1),
        };
        self.say(
            connection,
            &format!("{{\"seq\":{seq},\"ack\":{ack},\"message\":{message}}}"),
        );
    }

    fn say(&mut self, connection: u64, text: &str) {
        let new = serde_json::from_str::<Frame<NodeMessage>>(text)
            .is_ok_and(|frame| frame.message.is_some() && frame.seq == self.seq);
        match self.desk.frame(connection, text) {
            Ok(()) => {
                self.seq += u64::from(new);
                self.hear();
            }
            Err(reason) => {
                assert!(
                    !reason.is_empty() && reason.len() <= 123,
                    "a close frame holds no more: {reason}"
                );
                self.desk.gone(connection);
                self.connection = None;
            }
        }
    }

    fn hear(&mut self) {
        let Some(connection) = self.connection else { return };
        for text in self.desk.heard(connection) {
            if let Ok(frame) = serde_json::from_str::<Frame<ExchangeMessage>>(&text) {
                assert!(frame.ack < self.seq, "{text} acknowledges what was not sent");
                if let Some(message) = frame.message {
                    assert_eq!(
                        frame.seq,
                        self.heard + 1,
                        "what is sent is numbered without gaps: {text}"
                    );
                    self.heard = frame.seq;
                    if let ExchangeMessage::Award(award) = message {
                        self.award = Some(award);
                    }
                }
            } else if let Ok(HelloReply::Welcome {
                node,
                session,
                received,
                ..
            }) = serde_json::from_str(&text)
            {
                if self.resume.is_none_or(|resume| resume.session != session) {
                    (self.seq, self.heard) = (1, 0);
                }
                assert!(received < self.seq, "{received} frames were not sent");
                self.seq = received + 1;
                self.node = node.to_string();
                self.resume = Some(Resume {
                    session,
                    received: self.heard,
                });
            } else {
                // A farewell.
                self.connection = None;
                return;
            }
        }
        if let Some(resume) = &mut self.resume {
            resume.received = self.heard;
        }
    }

    /// Ids are drawn anew in each run, so that an input can only name them.
    fn fill_in(&self, text: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(text).replace("$N", &self.node);
        if let Some(award) = &self.award {
            text = text.replace("$L", &award.lease.to_string());
            text = text.replace("$F", &serde_json::to_string(&award.fencing).unwrap_or_default());
        }
        text
    }
}

/// A lease from its award to its end, and what breaks it.
pub fn seeds() -> Vec<Vec<u8>> {
    let capability = json!({ "type": "capability", "cards": [{ "uuid": "GPU-1", "name": "a card (SIMULATED)", "index": 0,
        "simulated": true, "vram_total": 25_769_803_776_u64, "driver_version": "1",
        "power_limits": { "type": "not_supported" } }],
        "isolation": "lab_cgroup_v1", "architecture": "amd64", "memory": 8_589_934_592_u64, "agent_version": "0" });
    let offer = json!({ "type": "offer", "gpu": "GPU-1", "floor": "0.100000", "available": true });
    let with_lease = |kind: &str, more: Value| {
        let mut message = json!({ "type": kind, "lease": "$L", "fencing": "$F" });
        if let (Some(fields), Value::Object(more)) = (message.as_object_mut(), more) {
            fields.extend(more);
        }
        message
    };
    let note = |thawed: u64, closing: Value| {
        json!({ "lease": "$L", "fencing": "$F", "node": "$N", "thawed_ms": thawed, "frozen_ms": 5,
            "taken_utc_ms": 1_700_000_000_500_i64, "closing": closing })
    };
    let ended = json!({ "type": "exited", "code": 0 });
    let beat = json!({ "type": "heartbeat", "beat": 1, "leases": [{ "lease": "$L", "fencing": "$F", "phase": "running",
        "thawed_ms": 100 }] });
    let blob = format!("sha256:{}", "0".repeat(64));
    let mut life = vec![HELLO];
    let mut lives = Vec::new();
    let message = |life: &mut Vec<u8>, kind: u8, value: &Value| {
        life.push(kind);
        if kind == MESSAGE {
            life.push(0);
        }
        // The token is a bare number: what stands for it stands without quotes.
        write_run(life, value.to_string().replace("\"$F\"", "$F").as_bytes());
    };
    message(&mut life, MESSAGE, &capability);
    message(&mut life, MESSAGE, &offer);
    life.extend([PASS, 100, 1]);
    lives.push([&life[..], &[GONE, PASS, 255, 255, COME_BACK]].concat());
    let mut rejected = life.clone();
    message(
        &mut rejected,
        MESSAGE,
        &with_lease("reject", json!({ "message": "no room" })),
    );
    lives.push(rejected);
    message(&mut life, MESSAGE, &with_lease("accept", json!({})));
    message(
        &mut life,
        MESSAGE,
        &with_lease("progress", json!({ "phase": "running" })),
    );
    message(&mut life, MESSAGE, &beat);
    life.extend([PASS, 200, 10]);
    message(&mut life, NOTE, &note(2_000, Value::Null));
    lives.push([&life[..], &[GONE, PASS, 255, 255, HELLO, PASS, 255, 255]].concat());
    let mut reclaimed = life.clone();
    message(
        &mut reclaimed,
        MESSAGE,
        &with_lease("reclaim", json!({ "cause": { "type": "owner_paused" } })),
    );
    message(
        &mut reclaimed,
        MESSAGE,
        &with_lease("checkpoint", json!({ "blob": blob, "thawed_ms": 1_000 })),
    );
    lives.push(reclaimed);
    message(&mut life, NOTE, &note(3_000, ended.clone()));
    message(
        &mut life,
        MESSAGE,
        &with_lease("result", json!({ "cause": ended, "output": null })),
    );
    life.extend([PASS, 255, 255]);
    lives.push(life);
    let mut texts = vec![TEXT];
    write_run(
        &mut texts,
        br#"{"payloadType":"application/vnd.sela.hello.v1+json","payload":"e30=","signatures":[]}"#,
    );
    texts.extend([HELLO, TEXT]);
    write_run(&mut texts, br#"{"seq":0,"ack":0,"message":null}"#);
    lives.push(texts);
    lives
}
