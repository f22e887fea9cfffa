//! A worker's first words as domain types.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringtune_proto::convert::{FieldError, parse, unsigned};
use ringtune_proto::v1;
use ringtune_shared::job::{Violation, check_labels};
use ringtune_shared::names;
use ringtune_shared::version::{Dialect, ProtocolRange};

use super::held_ranks;
use crate::core::{Capabilities, Hello};

/// Characters of a name that a worker gives.
const LONGEST_NAME: usize = 256;
/// Features that a worker may name, and the letters of one.
const MOST_FEATURES: usize = 64;
const LONGEST_FEATURE: usize = 64;
/// Processor flags that a worker may name.
const MOST_FLAGS: usize = 64;

/// A worker's first words.
pub(in crate::grpc) fn hello(wire: v1::Hello) -> Result<Hello, FieldError> {
    let mut capabilities = self::capabilities(wire.capabilities.unwrap_or_default())?;
    capabilities.labels = wire.labels;
    if let Some(Violation { field, problem, .. }) = check_labels("hello.labels", &capabilities.labels).pop() {
        return Err(FieldError::new(field, problem));
    }
    Ok(Hello {
        worker: parse("hello.worker_id", &wire.worker_id)?,
        incarnation: wire.incarnation,
        host_name: name("hello.host_name", wire.host_name)?,
        address: name("hello.address", wire.address)?,
        dialect: Dialect {
            version: capabilities.version.clone(),
            protocols: protocols(wire.protocol_min, wire.protocol_max)?,
            features: features(wire.features)?,
        },
        capabilities: Arc::new(capabilities),
        held: held_ranks("hello.held", wire.held)?.0,
    })
}

/// A minimum that is absent is the maximum: release 0.1.0 spoke one protocol and named it there.
fn protocols(min: u32, max: u32) -> Result<ProtocolRange, FieldError> {
    if min > max {
        let problem = format!("got {min}; allowed: at most protocol_max, which is {max}");
        return Err(FieldError::new("hello.protocol_min", problem));
    }
    Ok(ProtocolRange { min: if min == 0 { max } else { min }, max })
}

fn features(wire: Vec<String>) -> Result<Vec<String>, FieldError> {
    let wrong = |problem| Err(FieldError::new("hello.features", problem));
    if wire.len() > MOST_FEATURES {
        return wrong(format!("{} names; allowed: at most {MOST_FEATURES}", wire.len()));
    }
    let plain =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || ".-".contains(letter);
    let bad = |name: &&String| name.is_empty() || name.len() > LONGEST_FEATURE || !name.chars().all(plain);
    if let Some(name) = wire.iter().find(bad) {
        let given: String = name.chars().take(LONGEST_FEATURE).collect();
        return wrong(format!("got {given:?}; allowed: 1 to {LONGEST_FEATURE} of a-z, 0-9, \".\" and \"-\""));
    }
    Ok(wire)
}

fn capabilities(wire: v1::Capabilities) -> Result<Capabilities, FieldError> {
    if wire.cpu_flags.len() > MOST_FLAGS {
        let problem = format!("{} flags; allowed: at most {MOST_FLAGS}", wire.cpu_flags.len());
        return Err(FieldError::new("hello.capabilities.cpu_flags", problem));
    }
    let flag = |flag| name("hello.capabilities.cpu_flags", flag);
    Ok(Capabilities {
        version: name("hello.capabilities.version", wire.version)?,
        libtorch_version: name("hello.capabilities.libtorch_version", wire.libtorch_version)?,
        cpu_model: name("hello.capabilities.cpu_model", wire.cpu_model)?,
        cpu_flags: wire.cpu_flags.into_iter().map(flag).collect::<Result<_, _>>()?,
        cores: unsigned("hello.capabilities.cores", wire.cores.into())?,
        numa_nodes: unsigned("hello.capabilities.numa_nodes", wire.numa_nodes.into())?,
        memory_bytes: unsigned("hello.capabilities.memory_bytes", wire.memory_bytes)?,
        numerics_class: name("hello.capabilities.numerics_class", wire.numerics_class)?,
        bf16: wire.bf16,
        threads: unsigned("hello.capabilities.threads", wire.threads.into())?,
        labels: BTreeMap::new(),
    })
}

fn name(field: &str, text: String) -> Result<String, FieldError> {
    names::check(&text, LONGEST_NAME).map_err(|problem| FieldError::new(field, problem))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use ringtune_shared::ids::WorkerId;

    use super::*;

    #[test]
    fn a_range_of_protocols_is_read_as_old_and_new_workers_write_it() {
        let read = |protocol_min, protocol_max| {
            let worker_id = WorkerId::new().to_string();
            let read = hello(v1::Hello { worker_id, protocol_min, protocol_max, ..Default::default() });
            read.map(|hello| (hello.dialect.protocols.min, hello.dialect.protocols.max))
        };
        assert_eq!(read(2, 3).unwrap(), (2, 3));
        assert_eq!(read(0, 1).unwrap(), (1, 1), "as release 0.1.0 writes it");
        assert_eq!(read(0, 0).unwrap(), (0, 0), "it names none");
        assert_eq!(read(4, 3).unwrap_err().field, "hello.protocol_min");
    }

    #[test]
    fn a_hello_is_bounded() {
        let good = v1::Hello { worker_id: WorkerId::new().to_string(), ..Default::default() };
        assert!(hello(good.clone()).is_ok());
        let long = v1::Hello { host_name: "x".repeat(LONGEST_NAME + 1), ..good.clone() };
        assert_eq!(hello(long).unwrap_err().field, "hello.host_name");
        for host_name in ["\u{202e}a", "a\r\nb", "\u{1b}[2J"] {
            let strange = v1::Hello { host_name: host_name.to_owned(), ..good.clone() };
            assert_eq!(hello(strange).unwrap_err().field, "hello.host_name", "{host_name:?}");
        }
        for features in
            [vec!["a".to_owned(); MOST_FEATURES + 1], vec![String::new()], vec!["Big one".to_owned()]]
        {
            let many = v1::Hello { features, ..good.clone() };
            assert_eq!(hello(many).unwrap_err().field, "hello.features");
        }
        let nobody = v1::Hello { worker_id: "me".to_owned(), ..good };
        assert_eq!(hello(nobody).unwrap_err().field, "hello.worker_id");
    }
}
