//! Readers of earlier releases.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use prost::{
    Message as _,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};

/// The messages and enums of a release, from the descriptors of its API.
#[derive(Debug, Default)]
pub struct Release {
    messages: BTreeMap<String, BTreeMap<u32, Field>>,
    enums: BTreeMap<String, BTreeSet<i32>>,
}

#[derive(Debug)]
struct Field {
    name: String,
    holds: Holds,
}

#[derive(Debug)]
enum Holds {
    Message(String),
    Enum(String),
    Plain,
}

impl Release {
    /// Of a release whose API is kept with its recordings.
    ///
    /// # Errors
    /// It is not there, or it is damaged.
    pub fn read(release: &str) -> Result<Self> {
        let path = super::folder(release).join("api.binpb");
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let files = FileDescriptorSet::decode(bytes.as_slice()).context("descriptors")?;
        let mut known = Self::default();
        for file in &files.file {
            let scope = format!(".{}", file.package());
            file.message_type.iter().for_each(|message| known.add_message(&scope, message));
            file.enum_type.iter().for_each(|values| known.add_enum(&scope, values));
        }
        ensure!(known.messages.contains_key(".ringtune.v1.Hello"), "{} has no Hello", path.display());
        Ok(known)
    }

    fn add_message(&mut self, scope: &str, message: &DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        let fields = message.field.iter().map(|field| {
            let of = || field.type_name().to_owned();
            let holds = match field.r#type() {
                Type::Message => Holds::Message(of()),
                Type::Enum => Holds::Enum(of()),
                _ => Holds::Plain,
            };
            (field.number().unsigned_abs(), Field { name: field.name().to_owned(), holds })
        });
        self.messages.insert(name.clone(), fields.collect());
        message.nested_type.iter().for_each(|nested| self.add_message(&name, nested));
        message.enum_type.iter().for_each(|values| self.add_enum(&name, values));
    }

    fn add_enum(&mut self, scope: &str, values: &EnumDescriptorProto) {
        let numbers = values.value.iter().map(prost_types::EnumValueDescriptorProto::number).collect();
        self.enums.insert(format!("{scope}.{}", values.name()), numbers);
    }

    /// Fails, with their names, where `message` (of the API, by its plain name: "SessionRequest") has fields or values of
    /// enums that the release does not know, except for fields that it `may_skip`: "field 8 of SessionRequest.hello".
    ///
    /// # Errors
    /// It has some.
    pub fn expect_known(
        &self,
        name: &str,
        message: &(impl prost::Message + std::fmt::Debug),
        may_skip: &[&str],
    ) -> Result<()> {
        let mut unknown = Vec::new();
        self.walk(&format!(".ringtune.v1.{name}"), name, &message.encode_to_vec(), &mut unknown)?;
        unknown.retain(|unknown| !may_skip.contains(&unknown.as_str()));
        if unknown.is_empty() {
            return Ok(());
        }
        bail!("the release does not know {}, in {message:?}", unknown.join(", "))
    }

    fn walk(&self, of: &str, path: &str, mut bytes: &[u8], unknown: &mut Vec<String>) -> Result<()> {
        // Messages of other packages, such as Timestamp, do not grow.
        let Some(fields) = self.messages.get(of) else { return Ok(()) };
        while !bytes.is_empty() {
            let (number, wire) = decode_key(&mut bytes)?;
            let Some(field) = fields.get(&number) else {
                unknown.push(format!("field {number} of {path}"));
                skip_field(wire, number, &mut bytes, DecodeContext::default())?;
                continue;
            };
            let path = format!("{path}.{}", field.name);
            match (&field.holds, wire) {
                (Holds::Message(inner), WireType::LengthDelimited) => {
                    let length = usize::try_from(decode_varint(&mut bytes)?)?;
                    ensure!(length <= bytes.len(), "{path} is cut");
                    let (content, rest) = bytes.split_at(length);
                    self.walk(inner, &path, content, unknown)?;
                    bytes = rest;
                }
                (Holds::Enum(values), WireType::Varint) => {
                    let value = decode_varint(&mut bytes)? as i32;
                    if self.enums.get(values).is_some_and(|known| !known.contains(&value)) {
                        unknown.push(format!("{path} = {value}"));
                    }
                }
                _ => skip_field(wire, number, &mut bytes, DecodeContext::default())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ringtune_proto::v1::{
        self, RankPhase, session_request::Message as Up, session_response::Message as Down,
    };

    use super::*;

    fn report(report: v1::RankReport) -> v1::SessionRequest {
        v1::SessionRequest { message: Some(Up::RankReport(report)) }
    }

    #[test]
    fn what_came_after_the_release_is_named_and_nothing_else() -> Result<()> {
        let release = Release::read("0.2.0")?;
        let (job_id, reason) = ("a".to_owned(), "b".to_owned());
        let old = v1::RankReport { job_id, reason, phase: RankPhase::Finished.into(), ..Default::default() };
        release.expect_known("SessionRequest", &report(old.clone()), &[])?;

        let trouble = Some(v1::RingTrouble { rank: 1, ..Default::default() });
        let newer = v1::RankReport { trouble, leaving: true, phase: RankPhase::Waiting.into(), ..old };
        let unknown = |may_skip: &[&str]| {
            let known = release.expect_known("SessionRequest", &report(newer.clone()), may_skip);
            known.err().map(|error| error.to_string()).context("it is known")
        };
        let fields = ["field 10 of SessionRequest.rank_report", "field 11 of SessionRequest.rank_report"];
        let value = "SessionRequest.rank_report.phase = ";
        let said = unknown(&[])?;
        ensure!(fields.iter().all(|field| said.contains(field)) && said.contains(value), "{said}");
        let said = unknown(&fields)?;
        ensure!(!fields.iter().any(|field| said.contains(field)) && said.contains(value), "{said}");
        let enter = v1::SessionResponse { message: Some(Down::EnterRing(v1::EnterRing::default())) };
        ensure!(release.expect_known("SessionResponse", &enter, &[]).is_err(), "EnterRing is newer");
        Ok(())
    }
}
