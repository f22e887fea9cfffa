//! `cluster.constraints` and `cluster.topology`: which workers a job may run on, and how they are spread.

use std::{collections::BTreeMap, fmt, str::FromStr};

use super::{
    queue::{check_label_key, check_label_value},
    text::shortened,
};

/// Letters of a processor's flag.
const LONGEST_FLAG: usize = 63;

/// Something that every worker of a job has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Constraint {
    /// A label, as in `pool=blue`.
    Label {
        /// `pool`
        key: String,
        /// `blue`
        value: String,
    },
    /// A flag of its processor, as in `amx_bf16`.
    Flag(String),
}

impl Constraint {
    /// Whether a worker with these labels and flags has it.
    pub fn is_met(&self, labels: &BTreeMap<String, String>, flags: &[String]) -> bool {
        match self {
            Self::Label { key, value } => labels.get(key) == Some(value),
            Self::Flag(flag) => flags.contains(flag),
        }
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label { key, value } => write!(formatter, "{key}={value}"),
            Self::Flag(flag) => formatter.write_str(flag),
        }
    }
}

impl FromStr for Constraint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((key, value)) = text.split_once('=') {
            check_label_key(key)?;
            check_label_value(value).map_err(|problem| format!("{:?}: {problem}", shortened(text)))?;
            return Ok(Self::Label { key: key.to_owned(), value: value.to_owned() });
        }
        let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        if text.is_empty() || text.len() > LONGEST_FLAG || !text.chars().all(fits) {
            return Err(format!(
                "got {:?}; allowed: a label, as in \"pool=blue\", or a flag of the processor, as in \"amx_bf16\"",
                shortened(text)
            ));
        }
        Ok(Self::Flag(text.to_owned()))
    }
}

/// How the workers of a ring are chosen among those that are free, by the value of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    /// Those of as few values as may be: near each other.
    Pack(String),
    /// Those of as many values as may be: the loss of one takes few of them.
    Spread(String),
}

impl Topology {
    /// The label.
    pub fn key(&self) -> &str {
        let (Self::Pack(key) | Self::Spread(key)) = self;
        key
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (how, key) = text.split_once(':').unwrap_or((text, ""));
        let topology = match how {
            "pack" => Self::Pack,
            "spread" => Self::Spread,
            _ => {
                return Err(format!(
                    "got {:?}; allowed: \"pack:KEY\" or \"spread:KEY\" with the key of a worker's label, as in \
                     \"pack:rack\"",
                    shortened(text)
                ));
            }
        };
        check_label_key(key)?;
        Ok(topology(key.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{parse_job_toml, tests::job_with};

    #[test]
    fn a_constraint_is_a_label_or_a_flag() {
        let labels = BTreeMap::from([("pool".to_owned(), "blue".to_owned())]);
        let flags = ["amx_bf16".to_owned()];
        for (text, met) in [
            ("pool=blue", true),
            ("pool=red", false),
            ("rack=blue", false),
            ("amx_bf16", true),
            ("amx", false),
        ] {
            let constraint: Constraint = text.parse().unwrap();
            assert_eq!(constraint.is_met(&labels, &flags), met, "{text}");
            assert_eq!(constraint.to_string(), text);
        }
        for wrong in ["", "AMX", "a b", "Pool=blue", "=blue", "pool=\u{7}"] {
            assert!(wrong.parse::<Constraint>().is_err(), "{wrong:?}");
        }
        assert_eq!("pack:rack".parse(), Ok(Topology::Pack("rack".to_owned())));
        assert_eq!("spread:zone".parse(), Ok(Topology::Spread("zone".to_owned())));
        for wrong in ["pack", "pack:", "near:rack", "spread:a b"] {
            assert!(wrong.parse::<Topology>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_job_says_where_it_may_run_and_its_ranks_are_not_told() {
        let lines = "constraints = [\"pool=blue\", \"amx_bf16\", \"pool=blue\"]\ntopology = \"pack:rack\"";
        let spec = job_with("", lines);
        assert_eq!(spec.common.cluster.needs().len(), 2);
        assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
        assert_eq!(*std::sync::Arc::new(spec).for_ranks(), job_with("", ""));
        let problems = |lines: &str| {
            let text =
                job_with("", "").to_toml().unwrap().replace("[cluster]", &format!("[cluster]\n{lines}"));
            parse_job_toml(&text).unwrap_err().to_string()
        };
        assert!(
            problems("constraints = [\"a b\"]")
                .contains("cluster.constraints: got \"a b\"; allowed: a label")
        );
        assert!(
            problems("topology = \"near\"").contains("cluster.topology: got \"near\"; allowed: \"pack:KEY\"")
        );
        let many = vec!["\"x\""; 17].join(", ");
        assert!(problems(&format!("constraints = [{many}]")).contains("got 17; allowed: at most 16"));
    }
}
