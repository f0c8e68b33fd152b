//! Binary `sela`. Everything is in the library, which `lib.rs` opens.

fn main() -> std::process::ExitCode {
    sela_agent::main()
}
