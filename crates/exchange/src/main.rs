//! Binary `sela-exchange`. Everything is in the library, which `lib.rs` opens.

fn main() -> std::process::ExitCode {
    sela_exchange::main()
}
