//! Remote desktops that somebody is connected to, by the sockets of their servers: that a server waits is no session. Their
//! input arrives as input; this tells of the one who only watches.

use crate::look::Look;
use sela_protocol::senses::RemoteHand;
use std::path::Path;

/// The state of a TCP connection that stands, as the kernel writes it.
const ESTABLISHED: &str = "01";

/// What is connected now.
pub(super) fn look(proc: &Path) -> Look<Vec<RemoteHand>> {
    let read = |name: &str| std::fs::read_to_string(proc.join("net").join(name));
    let tcp = match read("tcp") {
        Ok(tcp) => tcp,
        Err(error) => return Look::Absent(format!("the system's connections cannot be read: {error}")),
    };
    // Either may be missing where IPv6 is off.
    let tcp = [tcp, read("tcp6").unwrap_or_default()];
    let udp = [read("udp").unwrap_or_default(), read("udp6").unwrap_or_default()];
    let mut by: Vec<&str> = tcp
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(connected)
        .chain(udp.iter().flat_map(|table| table.lines().skip(1)).filter_map(streamed))
        .collect();
    by.sort_unstable();
    by.dedup();
    let hand = |by: &str| RemoteHand { by: by.to_owned() };
    Look::Seen(by.into_iter().map(hand).collect())
}

/// The service of a connection from elsewhere.
fn connected(line: &str) -> Option<&'static str> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
    // A viewer on this very machine is no remote hand: a window onto a virtual machine is one.
    if state != ESTABLISHED || is_loopback(remote) {
        return None;
    }
    match port(local)? {
        3389 => Some("RDP"),
        5900..=5909 => Some("VNC"),
        _ => None,
    }
}

/// Sunshine opens these while it streams, and only then.
fn streamed(line: &str) -> Option<&'static str> {
    let local = line.split_ascii_whitespace().nth(1)?;
    matches!(port(local)?, 47_998..=48_000).then_some("Sunshine")
}

fn port(address: &str) -> Option<u16> {
    u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok()
}

/// 127.0.0.0/8 as the kernel writes it, alone or within IPv6, and ::1.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    match host.len() {
        8 => host.ends_with("7F"),
        32 => host == "00000000000000000000000001000000" || (host.contains("FFFF0000") && host.ends_with("7F")),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn check(tcp: &str, udp: &str, expected: &[&str]) {
        let folder = tempfile::tempdir().expect("a folder");
        let net = folder.path().join("net");
        std::fs::create_dir(&net).expect("made");
        for (name, lines) in [("tcp", ""), ("tcp6", tcp), ("udp", udp)] {
            std::fs::write(net.join(name), format!("{HEAD}{lines}")).expect("written");
        }
        if !tcp.contains("00000000000000000000000000000000") {
            std::fs::write(net.join("tcp"), format!("{HEAD}{tcp}")).expect("written");
        }
        let Look::Seen(hands) = look(folder.path()) else {
            panic!("not seen");
        };
        let by: Vec<&str> = hands.iter().map(|hand| hand.by.as_str()).collect();
        assert_eq!(by, expected, "{tcp}{udp}");
    }

    #[test]
    fn a_connected_desktop_counts_and_a_waiting_server_does_not() {
        check("", "", &[]);
        let waits = "   0: 00000000:0D3D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1\n";
        check(waits, "", &[]);
        let from_elsewhere =
            "   1: 0500A8C0:0D3D 0900A8C0:C350 01 00000000:00000000 00:00000000 00000000     0        0 2\n";
        check(from_elsewhere, "", &["RDP"]);
        let vnc = "   1: 0500A8C0:170C 0900A8C0:C350 01 00000000:00000000 00:00000000 00000000     0        0 2\n";
        check(vnc, "", &["VNC"]);
        let own_machine =
            "   1: 0100007F:170C 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 2\n";
        check(own_machine, "", &[]);
    }

    #[test]
    fn a_stream_counts_while_its_sockets_are_open() {
        let stream =
            "  12: 00000000:BB7E 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 3 2 0 0\n";
        check("", stream, &["Sunshine"]);
    }

    #[test]
    fn lines_that_make_no_sense_are_no_hands() {
        check("garbage\n\n: : :\n  1: ZZ:ZZZZ 1 01\n", "x\n", &[]);
    }
}
