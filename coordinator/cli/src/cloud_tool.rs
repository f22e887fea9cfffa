//! A cloud's own command line: the awscli, or Azure's az.
//!
//! Whoever has an account has its command, which knows profiles, single sign-on and second factors. The SDKs would bring a hundred
//! crates for a dozen calls, and know less.

use std::{io, process::Stdio};

use serde_json::Value;
use tokio::process::Command;

/// What a cloud did not do.
#[derive(Debug, thiserror::Error)]
pub enum CloudError {
    /// The cloud's command is not there.
    #[error("{program} is not in PATH: install it ({url}) and log in with it")]
    Missing {
        /// aws or az.
        program: &'static str,
        /// Where it is to be had.
        url: &'static str,
    },
    /// It cannot be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// aws or az.
        program: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// It knows no credentials, no region, or no such option.
    #[error("{call}: {text}")]
    Setup {
        /// The command's first words.
        call: String,
        /// What it said.
        text: String,
    },
    /// The cloud refuses.
    #[error("the cloud refuses `{call}`: {code}: {text}")]
    Refused {
        /// The command's first words.
        call: String,
        /// Such as ValidationError.
        code: String,
        /// What the cloud said.
        text: String,
    },
    /// The answer cannot be read.
    #[error("{call} does not answer in JSON: {source}")]
    Answer {
        /// The command's first words.
        call: String,
        /// Where it is wrong.
        source: serde_json::Error,
    },
}

impl CloudError {
    /// Whether the user has to change something on this machine.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Setup { .. })
    }

    /// What the cloud said, if it refused with this code.
    pub fn refusal(&self, wanted: &str) -> Option<&str> {
        match self {
            Self::Refused { code, text, .. } if code == wanted => Some(text),
            _ => None,
        }
    }
}

/// Which command to call, and what all calls have in common.
#[derive(Debug, Clone)]
pub struct CloudTool {
    program: &'static str,
    url: &'static str,
    common: Vec<String>,
}

impl CloudTool {
    /// The awscli, in `region` or its own.
    pub fn aws(region: Option<&str>) -> Self {
        let region = region.into_iter().flat_map(|region| ["--region".to_owned(), region.to_owned()]);
        Self { program: "aws", url: "https://aws.amazon.com/cli/", common: region.collect() }
    }

    /// Azure's, in the subscription that it is set to.
    pub fn azure() -> Self {
        let common = vec!["--only-show-errors".to_owned()];
        Self { program: "az", url: "https://learn.microsoft.com/cli/azure/", common }
    }

    /// What a call answers; null if that is nothing.
    ///
    /// # Errors
    /// The command is not there or refuses, or its cloud does.
    pub async fn ask(&self, words: &[&str]) -> Result<Value, CloudError> {
        let program = self.program;
        let call = format!("{program} {}", words.iter().take(2).copied().collect::<Vec<_>>().join(" "));
        let mut command = Command::new(program);
        // Version 2 of the awscli shows answers in a pager.
        command.args(words).args(&self.common).args(["--output", "json"]).env("AWS_PAGER", "");
        let done = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
        let done = done.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CloudError::Missing { program, url: self.url },
            _ => CloudError::Start { program, source },
        })?;
        if !done.status.success() {
            return Err(refused(call, &String::from_utf8_lossy(&done.stderr)));
        }
        if done.stdout.trim_ascii().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&done.stdout).map_err(|source| CloudError::Answer { call, source })
    }
}

/// aws: "An error occurred (CODE) when calling the OPERATION operation: TEXT"; az: "ERROR: (CODE) TEXT", with "Code: CODE" and
/// more after it.
fn refused(call: String, said: &str) -> CloudError {
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let of_aws = |line: &str| {
        let (code, rest) = line.split_once("An error occurred (")?.1.split_once(')')?;
        Some((code.to_owned(), rest.split_once(": ")?.1.to_owned()))
    };
    let of_azure = |line: &str| {
        let (code, text) = line.strip_prefix("ERROR: (")?.split_once(") ")?;
        Some((code.to_owned(), text.to_owned()))
    };
    let found = lines.clone().find_map(|line| of_aws(line).or_else(|| of_azure(line)));
    match found {
        Some((code, text)) => CloudError::Refused { call, code, text },
        None => CloudError::Setup { call, text: lines.next_back().unwrap_or("it says nothing").to_owned() },
    }
}

/// A field of each entry of a list.
pub fn strings(list: &Value, field: &str) -> Vec<String> {
    let entries = list.as_array().into_iter().flatten();
    entries.filter_map(|entry| Some(entry[field].as_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cloud_refuses_is_told_from_what_is_wrong_here() {
        let of = |said: &str| refused("a call".to_owned(), said);
        let aws = of(
            "\nAn error occurred (ValidationError) when calling the DescribeStacks operation: Stack with id a does not exist\n",
        );
        assert_eq!(aws.refusal("ValidationError"), Some("Stack with id a does not exist"));
        let azure = of(
            "ERROR: (ResourceGroupNotFound) Resource group 'a' could not be found.\nCode: ResourceGroupNotFound\nMessage: Resource\n",
        );
        assert_eq!(azure.refusal("ResourceGroupNotFound"), Some("Resource group 'a' could not be found."));
        for here in [
            "\nUnable to locate credentials. You can configure credentials by running \"aws configure\".\n",
            "ERROR: Please run 'az login' to setup account.\n",
        ] {
            assert!(of(here).is_usage() && of(here).to_string().contains(here.trim()), "{here}");
        }
    }
}
