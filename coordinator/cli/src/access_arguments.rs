//! The command line of the commands about who may talk to the cluster.

use std::{path::PathBuf, time::Duration};

use clap::{
    ArgGroup, Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use ringtune_security::{Role, TokenId};

use crate::{
    client::CoordinatorUrl,
    common_arguments::{AskArguments, OutputArguments},
    kubernetes::{ACCOUNT, parse_secret},
    references::WorkerReference,
};

/// Arguments of `login`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune login https://head-node:7070    asks for the token, and does not show it
  ringtune login head-node --token-file token.txt
  pass ringtune | ringtune login head-node

An administrator makes the token: `ringtune token create --role submitter --name ada`. It is
exchanged for a certificate and not needed again: commands renew the certificate by themselves.
The token is also taken from RINGTUNE_JOIN. There is no flag for it, because everybody on a
machine can read the command lines of its processes.

The certificate and its key are kept in ${XDG_CONFIG_HOME:-~/.config}/ringtune/credentials.
Commands without --coordinator and RINGTUNE_COORDINATOR go to the coordinator of the last login.")]
pub struct LoginArguments {
    /// The coordinator's address
    #[arg(value_name = "URL", env = "RINGTUNE_COORDINATOR", hide_env_values = true)]
    pub url: CoordinatorUrl,
    /// A file with the token; `-` is stdin
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// How to print.
    #[command(flatten)]
    pub output: OutputArguments,
}

/// Arguments of `logout`.
#[derive(Debug, Args)]
#[command(after_help = "\
This removes the certificate and its key from this machine. A copy of them stays good until it
ends, unless an administrator revokes it: `ringtune cert revoke`.")]
pub struct LogoutArguments {
    /// The coordinator's address [default: that of the last login]
    #[arg(value_name = "URL")]
    pub url: Option<CoordinatorUrl>,
    /// How to print.
    #[command(flatten)]
    pub output: OutputArguments,
}

/// Where commands look for credentials.
pub const CREDENTIALS: &str = "\
A coordinator whose address begins with https:// wants to know who calls. Commands look for
credentials in this order:
  1. the folder of --credentials or RINGTUNE_CREDENTIALS: identity.pem and trust.pem, as login
     keeps them, or chain.pem, key.pem and ca.pem of another authority
  2. an access token in RINGTUNE_TOKEN, or in the file RINGTUNE_TOKEN_FILE; with --ca or
     RINGTUNE_CA, or the CA of the login
  3. the login at that coordinator
  4. on the coordinator's own machine, for those who may read it: /var/lib/ringtune/admin, or
     admin in the folder that RINGTUNE__STORAGE__STATE_DIR names

Without a scheme an address means http on this machine's loopback and https elsewhere.";

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token, and print it: nobody can show it again
    Create(CreateTokenArguments),
    /// List the tokens that still open something, newest first
    List(AskArguments),
    /// Make a token worthless; who has joined with it stays
    Revoke(RevokeTokenArguments),
}

/// Arguments of `token create`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  One worker may join, within an hour:
      ringtune token create --role worker
  Twenty may, within a day:
      ringtune token create --role worker --uses 20 --ttl 1d
  A person may use it with `ringtune login`:
      ringtune token create --role submitter --name ada
  A program sends it with each call:
      ringtune token create --role observer --name prometheus --access --ttl 90d > token

Roles: a worker takes ranks. A submitter submits jobs, and sees and stops its own. An observer
reads everything. An admin may do everything.

The token alone goes to stdout. What to do with it is said on stderr.

In a pod of Kubernetes --kubernetes-secret puts it into a Secret that is there already, as `token`,
with the authority's roots as `ca.pem`; the pod's service account has to be allowed to patch it.")]
pub struct CreateTokenArguments {
    /// What its holder may do
    #[arg(long, value_name = "ROLE", value_parser = roles())]
    pub role: Role,
    /// The person or program that it is for, and the owner of what it submits; not for workers
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How long it is good, as in 30m, 12h or 90d [default: 1h, with --access 30d]
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    pub ttl: Option<Duration>,
    /// How many may join with it [default: 1]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u16).range(1..=10_000)
    )]
    pub uses: Option<u16>,
    /// Make an access token, for programs: it is sent with each call instead of being exchanged for a certificate
    #[arg(long, conflicts_with = "uses")]
    pub access: bool,
    /// In a pod of Kubernetes: write it into this Secret of the pod's namespace instead of printing it
    #[arg(long, value_name = "NAME", value_parser = parse_secret)]
    pub kubernetes_secret: Option<String>,
    /// Stay, and write a new one when half of its time is over
    #[arg(long, requires = "kubernetes_secret")]
    pub renew: bool,
    /// The folder with the service account's token, the API server's roots, and the namespace
    #[arg(long, value_name = "DIR", requires = "kubernetes_secret", default_value = ACCOUNT)]
    pub service_account: PathBuf,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of `token revoke`.
#[derive(Debug, Args)]
pub struct RevokeTokenArguments {
    /// The token's id, as `ringtune token list` shows it
    #[arg(value_name = "ID")]
    pub token: TokenId,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

const CERTIFICATES: &str = "\
SERIAL is what `cert revoke` takes, in full. NAME is of a worker its id. ROOT is the number of the
root that signed it (`ringtune ca show`). REVOKED is when it was revoked; empty: it is good.";

/// What to do with certificates.
#[derive(Debug, Subcommand)]
pub enum CertCommand {
    /// List the certificates that have not ended, newest first
    #[command(after_help = CERTIFICATES)]
    List(AskArguments),
    /// Make certificates worthless, and end the connections of whoever holds them
    Revoke(RevokeCertificateArguments),
    /// Get your own next certificate now; commands do so by themselves when it is time
    Renew(AskArguments),
}

/// Arguments of `cert revoke`.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("which").required(true).args(["serial", "worker", "name"])),
    after_help = "\
Examples:
  ringtune cert revoke 5d2f0c6e0b1f4f3a9c47d1e2a8b30f96   one certificate
  ringtune cert revoke --worker WORKER                     all of a worker; its ring goes on
  ringtune cert revoke --role submitter --name ada         all of a person

Whoever lost all certificates is let in again by a new token."
)]
pub struct RevokeCertificateArguments {
    /// The certificate's serial number in full, as `ringtune cert list` shows it
    #[arg(value_name = "SERIAL", value_parser = parse_serial)]
    pub serial: Option<String>,
    /// All certificates of this worker: its id, and of one that `ringtune workers` shows 4 or more digits of the id's
    /// beginning or end, or the name of its host
    #[arg(long, value_name = "WORKER")]
    pub worker: Option<WorkerReference>,
    /// All certificates of this person or program
    #[arg(long, value_name = "NAME", requires = "role")]
    pub name: Option<String>,
    /// In which role
    #[arg(long, value_name = "ROLE", requires = "name", value_parser = roles())]
    pub role: Option<Role>,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// What to do with the cluster's own certificate authority.
#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// Show its roots
    Show(ShowAuthorityArguments),
    /// Make a new root, which signs from now on; training goes on, and nobody has to do anything
    Rotate(AskArguments),
    /// Stop trusting the older root, once everybody has a certificate of the newer one
    Retire(RetireAuthorityArguments),
}

/// Arguments of `ca show`.
#[derive(Debug, Args)]
pub struct ShowAuthorityArguments {
    /// Print the roots themselves, as PEM: for --ca, Prometheus and browsers
    #[arg(long)]
    pub pem: bool,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of `ca retire`.
#[derive(Debug, Args)]
pub struct RetireAuthorityArguments {
    /// Although somebody still has a certificate of the older root: they are out, and need a new token
    #[arg(long)]
    pub force: bool,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

fn roles() -> impl TypedValueParser<Value = Role> {
    PossibleValuesParser::new(Role::ALL.map(Role::as_str)).try_map(|name| name.parse::<Role>())
}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time >= Duration::from_secs(1) => Ok(time),
        Ok(_) => Err("it is too short; allowed: as in 30m, 12h or 90d".to_owned()),
        Err(problem) => Err(format!("{problem}; allowed: as in 30m, 12h or 90d")),
    }
}

/// In the form in which certificates and lists have it.
fn parse_serial(text: &str) -> Result<String, String> {
    let digits: String = text.chars().filter(|c| *c != ':').collect::<String>().to_ascii_lowercase();
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digits = digits.trim_start_matches('0');
    if is_hex && (1..=40).contains(&digits.len()) {
        Ok(digits.to_owned())
    } else {
        Err("a serial number is up to 40 hexadecimal digits".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn parse(arguments: &str) -> Result<Command, String> {
        let words = ["ringtune"].into_iter().chain(arguments.split(' '));
        Arguments::try_parse_from(words).map(|arguments| arguments.command).map_err(|error| error.to_string())
    }

    #[test]
    fn times_are_written_as_people_write_them() {
        let seconds = |text| parse_ttl(text).map(|time| time.as_secs());
        assert_eq!(seconds("1h"), Ok(3600));
        assert_eq!(seconds("90d"), Ok(90 * 86_400));
        assert_eq!(seconds("1h 30m"), Ok(5400));
        for wrong in ["", "1", "h", "-1h", "0s", "1ms", "99999999999999999999y"] {
            let problem = parse_ttl(wrong).expect_err(wrong);
            assert!(problem.contains("as in 30m"), "{wrong}: {problem}");
        }
    }

    #[test]
    fn serial_numbers_are_taken_as_other_programs_write_them() {
        assert_eq!(parse_serial("00:8F:01").as_deref(), Ok("8f01"));
        assert_eq!(parse_serial("8f01").as_deref(), Ok("8f01"));
        for wrong in ["", "0", "x", &"1".repeat(41)] {
            assert!(parse_serial(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_revoked_is_named_in_one_way() {
        let id = uuid::Uuid::nil();
        for right in
            ["cert revoke 8f", &format!("cert revoke --worker {id}"), "cert revoke --role admin --name a"]
        {
            assert!(parse(right).is_ok(), "{right}");
        }
        for wrong in [
            "cert revoke",
            "cert revoke --name a",
            "cert revoke --role admin",
            "cert revoke 8f --role admin --name a",
            &format!("cert revoke 8f --worker {id}"),
            "token revoke 8f",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_tokens_flags_are_checked() {
        let Ok(Command::Token(TokenCommand::Create(create))) =
            parse("token create --role worker --ttl 1d --uses 20")
        else {
            panic!("refused")
        };
        assert_eq!((create.role, create.uses, create.access), (Role::Worker, Some(20), false));
        for (wrong, says) in [
            ("token create", "--role"),
            ("token create --role king", "submitter"),
            ("token create --role worker --uses 0", "--uses"),
            ("token create --role worker --uses 10001", "--uses"),
            ("token create --role observer --name a --access --uses 2", "cannot be used with"),
            ("token create --role worker --ttl soon", "as in 30m"),
        ] {
            let problem = parse(wrong).map(|_| ()).expect_err(wrong);
            assert!(problem.contains(says), "{wrong}: {problem}");
        }
        assert!(parse("login").is_err() || std::env::var_os("RINGTUNE_COORDINATOR").is_some());
        assert!(parse("login head-node --token rtj1.x").is_err(), "a secret on the command line");
    }
}
