//! The command line of `cloud`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::{client::CoordinatorUrl, common_arguments::OutputArguments};

/// Which cloud.
#[derive(Debug, Subcommand)]
pub enum CloudCommand {
    /// Clusters on Amazon EC2, by two CloudFormation stacks and the awscli
    #[command(subcommand)]
    Aws(ClusterCommand<AwsUpArguments>),
    /// Clusters on Azure, by a Bicep template and the az command
    #[command(subcommand)]
    Azure(ClusterCommand<AzureUpArguments>),
}

/// What to do with a cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand<Up: Args> {
    /// Make a cluster, or change one: what is not given stays
    Up(Box<Up>),
    /// Show a cluster's machines, and where its coordinator is
    Status(ClusterArguments),
    /// Show what a cluster costs an hour, by a table of prices with its date
    Cost(ClusterArguments),
    /// Remove a cluster, and look whether anything is left
    Down(Box<DownArguments>),
}

/// Which cluster.
#[derive(Debug, Args)]
pub struct ClusterArguments {
    /// The cluster's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: String,
    /// The region [default: that of the cloud's own command]
    #[arg(long, value_name = "REGION")]
    pub region: Option<String>,
    /// How to print.
    #[command(flatten)]
    pub output: OutputArguments,
}

/// Arguments of `up` in any cloud.
#[derive(Debug, Args)]
pub struct UpArguments {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Workers [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub workers: Option<u16>,
    /// The workers' type [default: one with AMX and 16 processors]
    #[arg(long, value_name = "TYPE")]
    pub worker_type: Option<String>,
    /// Take spare machines, for less, that the cloud takes back when it needs them
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub spot: Option<bool>,
    /// The coordinator's type [default: one with 2 processors]
    #[arg(long, value_name = "TYPE")]
    pub coordinator_type: Option<String>,
    /// A network that may call the coordinator, as 203.0.113.7/32; none [default]
    #[arg(long, value_name = "CIDR", value_parser = parse_network)]
    pub clients: Option<String>,
    /// Print what would be made and what it costs an hour, and make nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `cloud aws up`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aws s3 cp --recursive target/packages/ s3://acme/ringtune/packages/
  ringtune cloud aws up toy --bucket acme/ringtune --dry-run     the templates, and what it costs
  ringtune cloud aws up toy --bucket acme/ringtune --spot --clients $(curl -s ifconfig.me)/32
  ringtune cloud aws up toy --workers 8                          six more workers
  ringtune cloud aws down toy

Workers are of m7i.4xlarge by default; m7i, m8i and r7iz have AMX, m6i has not. Needs the awscli
and its credentials (aws configure, or AWS_PROFILE). Ctrl-C stops watching: the same command takes
it up again, `down` removes what is there.")]
pub struct AwsUpArguments {
    /// What it is made of.
    #[command(flatten)]
    pub up: UpArguments,
    /// The bucket, with a prefix: the packages are below PREFIX/packages, models for jobs below PREFIX/models
    #[arg(long, value_name = "BUCKET/PREFIX", value_parser = parse_bucket)]
    pub bucket: Option<(String, String)>,
    /// The availability zone [default: the first that has both types]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// A network that is there already, instead of a new one
    #[arg(long, value_name = "VPC", requires = "subnet", conflicts_with = "zone")]
    pub vpc: Option<String>,
    /// A subnet of it, which reaches the internet
    #[arg(long, value_name = "SUBNET", requires = "vpc")]
    pub subnet: Option<String>,
    /// A Debian 12 for x86-64 [default: Debian's newest]
    #[arg(long, value_name = "AMI")]
    pub image: Option<String>,
}

/// Arguments of `cloud azure up`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune cloud azure up toy --region westeurope --packages target/packages --dry-run
  ringtune cloud azure up toy --region westeurope --packages target/packages --spot
  ringtune cloud azure up toy --workers 8                        six more workers
  ringtune cloud azure down toy

Workers are of Standard_D16s_v6 by default, which has AMX; on v5 it depends on the machine that
Azure picks. Needs az (az login; az account set). Ctrl-C stops watching: the same command takes it
up again, `down` removes what is there.")]
pub struct AzureUpArguments {
    /// What it is made of.
    #[command(flatten)]
    pub up: UpArguments,
    /// The folder with the packages, which are uploaded: target/packages after make packages
    #[arg(long, value_name = "DIR")]
    pub packages: Option<PathBuf>,
    /// The object id of who reads the login token [default: whoever is logged in]
    #[arg(long, value_name = "ID")]
    pub owner: Option<String>,
}

/// Arguments of `down`.
#[derive(Debug, Args)]
#[command(after_help = "\
While jobs run nothing is removed. With --force they are cancelled, and what they have is saved:
the files, and a checkpoint of the last step, from which `resume_from_checkpoint` goes on.")]
pub struct DownArguments {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Cancel jobs that have not ended, and save what they have; go on if the coordinator does not answer
    #[arg(long)]
    pub force: bool,
    /// With --force: where to save it, a folder for each job [default: ringtune-out/NAME]
    #[arg(short, long, value_name = "DIR", requires = "force")]
    pub output_dir: Option<PathBuf>,
    /// Whom to ask which jobs have not ended, with what `ringtune login` has for it [default: the cluster's coordinator]
    #[arg(long, value_name = "URL")]
    pub coordinator: Option<CoordinatorUrl>,
}

/// As the templates allow it.
fn parse_name(text: &str) -> Result<String, String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    if text.len() <= 32 && begins && text.bytes().all(inner) && !text.ends_with('-') {
        return Ok(text.to_owned());
    }
    Err("allowed: lower-case letters, digits and -, at most 32, beginning with a letter".to_owned())
}

/// An IPv4 network.
fn parse_network(text: &str) -> Result<String, String> {
    let parts = text.split_once('/');
    let is_network = parts.is_some_and(|(address, bits)| {
        address.parse::<std::net::Ipv4Addr>().is_ok() && bits.parse::<u8>().is_ok_and(|bits| bits <= 32)
    });
    if is_network { Ok(text.to_owned()) } else { Err("allowed: ADDRESS/BITS, as 203.0.113.7/32".to_owned()) }
}

/// BUCKET/PREFIX, also with `s3://` in front.
fn parse_bucket(text: &str) -> Result<(String, String), String> {
    let place = text.strip_prefix("s3://").unwrap_or(text).trim_end_matches('/');
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, "ringtune"));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let right = bucket.len() >= 3
        && bucket.bytes().all(is_name)
        && prefix.split('/').all(|part| !part.is_empty() && part.bytes().all(is_name));
    if right {
        Ok((bucket.to_owned(), prefix.to_owned()))
    } else {
        Err("allowed: BUCKET/PREFIX, as acme/ringtune".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places_are_those_of_the_templates() {
        assert!(["a", "toy-2"].into_iter().all(|name| parse_name(name).is_ok()));
        for wrong in ["", "2a", "A", "a-", "a_b", &"a".repeat(33)] {
            assert!(parse_name(wrong).is_err(), "{wrong}");
        }
        let bucket = |text: &str| parse_bucket(text).map(|(bucket, prefix)| format!("{bucket} {prefix}"));
        assert_eq!(bucket("s3://acme/a/b/").as_deref(), Ok("acme a/b"));
        assert_eq!(bucket("acme").as_deref(), Ok("acme ringtune"));
        for wrong in ["", "a/b", "acme//b", "acme/b c", "https://acme/b"] {
            assert!(bucket(wrong).is_err(), "{wrong}");
        }
        assert!(parse_network("203.0.113.7/32").is_ok());
        for wrong in ["203.0.113.7", "203.0.113.7/33", "::/0", "203.0.113/24"] {
            assert!(parse_network(wrong).is_err(), "{wrong}");
        }
    }
}
