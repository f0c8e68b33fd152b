//! The attacker, and everything that stands for the owner: one small program, put into images and run beside them.
//!
//! `sela-probe inside NAME…`, `control NAME…`: attacks, a line each. `owner WORD`, `house`, `spare`: decoys. `has-uid`,
//! `has-capabilities`: says by its status what an image's program gained. `do WHAT …`: one thing that the suite watches from outside.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
mod linux {
    use sela_attacks::arena::{ARENA_VARIABLE, Arena, OwnerSockets};
    use sela_attacks::catalogue::named;
    use sela_attacks::{decoys, deeds, has_more, runner};
    use std::process::ExitCode;

    pub(crate) fn main() -> ExitCode {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let Some((what, rest)) = words.split_first() else {
            return ExitCode::from(2);
        };
        let done = match what.as_str() {
            "inside" => attack(rest),
            "control" => runner::stand_apart().and_then(|()| attack(rest)),
            "owner" => sockets().and_then(|sockets| decoys::owner(&sockets, std::io::stdout())),
            "house" => decoys::house(std::io::stdout()),
            "spare" => decoys::until_input_ends(),
            "do" => deeds::run(rest),
            gained => return ExitCode::from(u8::from(!has_more(gained))),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                use std::io::Write as _;
                drop(writeln!(std::io::stderr(), "sela-probe {what}: {error}"));
                ExitCode::FAILURE
            }
        }
    }

    fn attack(names: &[String]) -> std::io::Result<()> {
        let text = std::env::var(ARENA_VARIABLE).map_err(std::io::Error::other)?;
        let arena: Arena = serde_json::from_str(&text)?;
        let unknown = |name: &String| std::io::Error::other(format!("no attack is called \"{name}\""));
        let probes: Vec<_> = names
            .iter()
            .map(|name| named(name).ok_or_else(|| unknown(name)))
            .collect::<Result<_, _>>()?;
        runner::run(&arena, &probes, std::io::stdout())
    }

    fn sockets() -> std::io::Result<OwnerSockets> {
        let text = std::env::var("OWNER_SOCKETS").map_err(std::io::Error::other)?;
        Ok(serde_json::from_str(&text)?)
    }
}
