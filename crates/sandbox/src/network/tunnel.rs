//! Bytes from one connection to the other and back, none looked at, all counted. A side that has said all it has to say is told to
//! the other, which may go on; a pair that is silent for long is closed.

use super::budget::{Budget, Way};
use super::refusal::Refusal;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

/// How long neither side may have said anything, and how long one may take to listen.
const SILENCE: Duration = Duration::from_secs(600);
/// Bytes that are read at a time.
const PART: usize = 16 << 10;

/// Why a tunnel ended before both sides were done.
#[derive(Debug)]
enum Broken {
    /// A side is gone, or silent for too long.
    Side,
    /// Nothing more may pass.
    Refused(Refusal),
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Side
    }
}

/// Runs until both sides are done, or one is gone. `early` came from the job together with its request.
///
/// # Errors
/// [`Refusal::UsedUp`] where it was cut.
pub(super) async fn tunnel(
    job: impl AsyncRead + AsyncWrite + Unpin,
    host: impl AsyncRead + AsyncWrite + Unpin,
    early: &[u8],
    budget: &Budget,
) -> Result<(), Refusal> {
    let (from_job, to_job) = tokio::io::split(job);
    let (from_host, to_host) = tokio::io::split(host);
    let heard = Heard::default();
    let up = pump(early.chain(from_job), to_host, Way::Up, budget, &heard);
    let down = pump(from_host, to_job, Way::Down, budget, &heard);
    match tokio::try_join!(up, down) {
        Ok(((), ())) | Err(Broken::Side) => Ok(()),
        Err(Broken::Refused(refusal)) => Err(refusal),
    }
}

/// How often either side was heard.
#[derive(Debug, Default)]
struct Heard(AtomicU64);

impl Heard {
    fn once_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn times(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    way: Way,
    budget: &Budget,
    heard: &Heard,
) -> Result<(), Broken> {
    let mut part = vec![0; PART];
    loop {
        budget.go_on().await;
        let before = heard.times();
        let count = match timeout(SILENCE, from.read(&mut part)).await {
            Ok(read) => read?,
            Err(_) if heard.times() != before => continue,
            Err(_) => return Err(Broken::Side),
        };
        if count == 0 {
            return Ok(to.shutdown().await?);
        }
        let passed = budget.pass(way, count).await.map_err(Broken::Refused)?;
        heard.once_more();
        match timeout(SILENCE, to.write_all(&part[..passed])).await {
            Ok(written) => written?,
            Err(_) => return Err(Broken::Side),
        }
        heard.once_more();
        if passed < count {
            // What is over is thrown away; the reason is found out the same way as on the next byte.
            budget.left().map_err(Broken::Refused)?;
            return Err(Broken::Side);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::OwnersLine;
    use sela_protocol::network::{JobNetwork, NetworkShare};
    use sela_protocol::units::Bytes;
    use tokio::io::duplex;

    fn budget(bytes: u64) -> Budget {
        let network = JobNetwork {
            hosts: Vec::new(),
            down_per_s: None,
            up_per_s: None,
            bytes: Some(Bytes(bytes)),
        };
        let share = NetworkShare {
            down_per_s: Bytes(1 << 40),
            up_per_s: Bytes(1 << 40),
            ..NetworkShare::default()
        };
        Budget::new(&network, OwnersLine::new(share))
    }

    #[tokio::test]
    async fn a_side_that_has_said_all_still_hears_the_other() {
        let budget = budget(1 << 20);
        let ((job, mut program), (host, mut server)) = (duplex(64), duplex(64));
        let serve = async {
            let mut asked = String::new();
            server.read_to_string(&mut asked).await.unwrap();
            server.write_all(format!("you said {asked}").as_bytes()).await.unwrap();
            drop(server);
        };
        let ask = async {
            program.write_all(b"late").await.unwrap();
            program.shutdown().await.unwrap();
            let mut answer = String::new();
            program.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let (ended, (), answer) = tokio::join!(tunnel(job, host, b"early, ", &budget), serve, ask);
        assert_eq!((ended, answer.as_str()), (Ok(()), "you said early, late"));
        assert_eq!(budget.used(), (Bytes(20), Bytes(11)));
    }

    #[tokio::test]
    async fn what_goes_beyond_the_total_is_cut_to_the_byte_and_closes_both() {
        let budget = budget(1_000);
        let ((job, mut program), (host, mut server)) = (duplex(64), duplex(1 << 16));
        server.write_all(&[7; 5_000]).await.unwrap();
        let receive = async {
            let mut received = Vec::new();
            program.read_to_end(&mut received).await.unwrap();
            received
        };
        let (ended, received) = tokio::join!(tunnel(job, host, b"", &budget), receive);
        assert_eq!(ended, Err(Refusal::UsedUp { limit: Bytes(1_000) }));
        assert_eq!(received, [7; 1_000]);
        assert!(
            server.write_all(b"more").await.is_err(),
            "the host's side is closed, too"
        );
    }

    #[tokio::test]
    async fn a_side_that_is_gone_ends_the_other() {
        let budget = budget(1_000);
        let ((job, program), (host, server)) = (duplex(64), duplex(64));
        drop((program, server));
        assert_eq!(tunnel(job, host, b"x", &budget).await, Ok(()));
    }

    /// Time is paused: hours pass while nobody speaks.
    #[tokio::test(start_paused = true)]
    async fn a_job_that_does_not_listen_any_more_is_given_up() {
        let budget = budget(1 << 20);
        let ((job, program), (host, mut server)) = (duplex(8), duplex(1 << 16));
        server.write_all(&[7; 5_000]).await.unwrap();
        assert_eq!(tunnel(job, host, b"", &budget).await, Ok(()));
        drop((program, server));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pair_that_is_silent_for_long_is_closed_and_one_that_speaks_now_and_then_is_not() {
        let budget = budget(1 << 20);
        let ((job, program), (host, mut server)) = (duplex(1 << 10), duplex(1 << 10));
        let speak = async {
            for _ in 0..10 {
                tokio::time::sleep(SILENCE / 2).await;
                server.write_all(b"still here").await.unwrap();
            }
            let mut rest = Vec::new();
            server.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest, b"", "closed, not by this side");
        };
        let before = tokio::time::Instant::now();
        let (ended, ()) = tokio::join!(tunnel(job, host, b"", &budget), speak);
        assert_eq!((ended, budget.used().0), (Ok(()), Bytes(100)));
        assert!(before.elapsed() >= SILENCE * 6, "{:?}", before.elapsed());
        drop(program);
    }
}
