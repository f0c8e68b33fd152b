//! Target `proxy`: what a job says to the proxy that is its only way out. A request is read the same however it arrives, its answer
//! stands whatever follows, and whom it names is written as it reads.

use crate::memory;
use crate::tape::Tape;
use sela_protocol::network::{HostRule, Hosts};
use sela_sandbox::network::request::{LONGEST, Request, RequestError, Target, read};

/// A line and what is quoted of it.
const MEMORY: usize = 64 << 10;

/// Reads an input as a request, and as a rule that would allow it.
///
/// # Panics
/// If something does not hold.
pub fn hold(input: &[u8]) {
    let mut tape = Tape::new(input);
    let rule = tape.run();
    let bytes = tape.rest();
    let whole = memory::at_most(MEMORY, || read(bytes));
    match &whole {
        Ok(Some(request)) => reads_well(request, bytes),
        Ok(None) => assert!(bytes.len() < LONGEST, "more is not waited for"),
        Err(error) => says_something(error),
    }
    first_answer_stands(bytes, &whole);
    if let Ok(rule) = std::str::from_utf8(rule) {
        a_rule_is_written_as_it_reads(rule);
    }
}

fn reads_well(request: &Request, bytes: &[u8]) {
    let Request { target, length } = request;
    assert!(*length <= LONGEST.min(bytes.len()) && bytes[..*length].ends_with(b"\r\n\r\n"));
    assert_ne!(target.port, 0);
    let text = target.to_string();
    assert_eq!(&text.parse::<Target>().expect(&text), target);
    // It is looked up and logged: one word, small letters, nothing that means something else elsewhere.
    assert!(
        text.bytes()
            .all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()),
        "{text}"
    );
    assert!(!text.contains(['/', '@', '?', '#', '\\', '%', '*']), "{text}");
    let again = format!("CONNECT {text} HTTP/1.1\r\n\r\n");
    let again = read(again.as_bytes()).expect(&text).expect("it is whole");
    assert_eq!(&again.target, target);
}

fn says_something(error: &RequestError) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() < 1_024, "{text}");
    assert!(
        !text.contains(char::is_control),
        "{text:?} would move the cursor of who reads it"
    );
}

/// However it is cut: what was answered to the first part is answered to the whole.
fn first_answer_stands(bytes: &[u8], whole: &Result<Option<Request>, RequestError>) {
    for cut in [1, 7, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        let part = read(&bytes[..cut.min(bytes.len())]);
        if part != Ok(None) {
            assert_eq!(&part, whole, "after {cut} bytes");
        }
    }
}

fn a_rule_is_written_as_it_reads(text: &str) {
    match text.parse::<HostRule>() {
        Ok(rule) => {
            let written = rule.to_string();
            assert_eq!(written.parse::<HostRule>().expect(&written), rule);
            assert!(rule.covers(&rule), "{written} allows what it says");
            if *rule.hosts() != Hosts::Any {
                let any: HostRule = "*".parse().expect("all hosts");
                assert!(!rule.covers(&any), "{written} does not allow everything");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Requests and rules, good and bad.
pub fn seeds() -> Vec<Vec<u8>> {
    let requests: [&[u8]; 7] = [
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n\x16\x03\x01",
        b"CONNECT [2606:4700::1111]:443 HTTP/1.0\r\n\r\n",
        b"CONNECT 93.184.216.34:80 HTTP/1.1\r\n\r\n",
        b"CONNECT xn--bcher-kva.example:8443 HTTP/1.1\r\n\r\n",
        b"GET http://example.org/ HTTP/1.1\r\n\r\n",
        b"CONNECT 0x7f000001:443 HTTP/1.1\r\n\r\n",
        b"CONNECT localhost:443 HTTP/1.1\r\n\r\n",
    ];
    let rules: [&[u8]; 5] = [
        b"example.org",
        b"*.example.org:8443",
        b"*",
        b"[::1]:443",
        b"93.184.216.34",
    ];
    let both = |(request, rule): (&&[u8], &&[u8])| {
        let mut seed = Vec::new();
        crate::tape::write_run(&mut seed, rule);
        seed.extend_from_slice(request);
        seed
    };
    requests.iter().zip(rules.iter().cycle()).map(both).collect()
}
