//! The `ringtune` command.

fn main() -> std::process::ExitCode {
    ringtune_cli::main()
}
