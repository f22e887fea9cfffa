//! The page, made from the descriptors of the .proto files.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
};
use ringtune_coordinator::access::table::{self, Who};

const PACKAGE: &str = "ringtune.v1";
/// What clients call comes first.
const SERVICES: [&str; 7] = [
    "JobService",
    "ArtifactService",
    "ClusterService",
    "AccessService",
    "WorkerService",
    "RingService",
    "ProbeService",
];
const HEAD: &str = "\
# RPC reference

Every method and message of package `ringtune.v1`, as the coordinator describes them by server reflection too. This page is
made from the .proto files and from the table of who may call what; [the API](api.md) explains how to use it.

*For*: the roles that may call a method once the cluster asks who calls ([security](security.md)); *own* means that submitters
reach their own jobs with it, and workers those that they have a place in.
";

/// Numbers of fields in the descriptors' own descriptor: they are the steps of a comment's path.
mod path {
    pub(super) const MESSAGE: i32 = 4;
    pub(super) const ENUM: i32 = 5;
    pub(super) const SERVICE: i32 = 6;
    pub(super) const FIELD: i32 = 2;
    pub(super) const METHOD: i32 = 2;
    pub(super) const VALUE: i32 = 2;
    pub(super) const NESTED: i32 = 3;
    pub(super) const NESTED_ENUM: i32 = 4;
}

/// The comments of one file, by the paths of what they stand above.
struct Comments(BTreeMap<Vec<i32>, String>);

impl Comments {
    fn of(file: &FileDescriptorProto) -> Self {
        let info = file.source_code_info.as_ref();
        let places = info.map(|info| info.location.as_slice()).unwrap_or_default();
        let text = |place: &prost_types::source_code_info::Location| {
            place.leading_comments().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        Self(places.iter().map(|place| (place.path.clone(), text(place))).collect())
    }

    /// As it may stand in a cell of a table.
    fn at(&self, path: &[i32]) -> String {
        let text = self.0.get(path).map(String::as_str).unwrap_or_default();
        text.replace('|', "\\|").replace('<', "\\<")
    }
}

/// The whole page.
pub(super) fn page() -> Result<String> {
    let set = FileDescriptorSet::decode(ringtune_proto::FILE_DESCRIPTOR_SET)?;
    let files: Vec<&FileDescriptorProto> = set.file.iter().filter(|file| file.package() == PACKAGE).collect();
    let mut page = HEAD.to_owned();
    let mut served = 0;
    for name in SERVICES {
        service(&mut page, &files, name)?;
        served += 1;
    }
    ensure!(served == files.iter().map(|file| file.service.len()).sum::<usize>(), "a service is left out");
    page.push_str("\n## Messages\n");
    let mut texts = BTreeMap::new();
    for file in files {
        let comments = Comments::of(file);
        for (index, message) in (0..).zip(&file.message_type) {
            message_texts(&mut texts, &comments, "", message, vec![path::MESSAGE, index]);
        }
        for (index, of) in (0..).zip(&file.enum_type) {
            enum_text(&mut texts, &comments, "", of, vec![path::ENUM, index]);
        }
    }
    for text in texts.values() {
        page.push_str(text);
    }
    Ok(page)
}

fn service(page: &mut String, files: &[&FileDescriptorProto], name: &str) -> Result<()> {
    let (file, at) = files
        .iter()
        .find_map(|file| Some((*file, file.service.iter().position(|service| service.name() == name)?)))
        .with_context(|| format!("no file has {name}"))?;
    let (comments, index) = (Comments::of(file), i32::try_from(at)?);
    writeln!(page, "\n## {name}\n\n{}\n", comments.at(&[path::SERVICE, index]))?;
    writeln!(page, "| Method | For | Request | Answer | What it does |\n|---|---|---|---|---|")?;
    for (number, method) in (0..).zip(&file.service[at].method) {
        let row = table::grpc_row(&format!("/{PACKAGE}.{name}/{}", method.name()));
        let who = row.map_or_else(|| "other workers".to_owned(), |row| of_whom(row.who, row.own));
        let stream = |streams: bool, of: &str| match streams {
            true => format!("stream of {}", link(of)),
            false => link(of),
        };
        writeln!(
            page,
            "| **{}** | {who} | {} | {} | {} |",
            method.name(),
            stream(method.client_streaming(), method.input_type()),
            stream(method.server_streaming(), method.output_type()),
            comments.at(&[path::SERVICE, index, path::METHOD, number]),
        )?;
    }
    Ok(())
}

fn of_whom(who: Who, own: bool) -> String {
    let roles = match who {
        Who::Everybody => "everybody".to_owned(),
        Who::Known => "whoever has a certificate or a token".to_owned(),
        Who::Certified => "whoever has a certificate".to_owned(),
        Who::AsCalls => "as the calls".to_owned(),
        Who::Roles(roles) => roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    };
    if own { format!("{roles}; own") } else { roles }
}

/// A message, and those inside it.
fn message_texts(
    texts: &mut BTreeMap<String, String>,
    comments: &Comments,
    outer: &str,
    message: &DescriptorProto,
    at: Vec<i32>,
) {
    // An entry of a map is no message of anybody's.
    if message.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry) {
        return;
    }
    let name = format!("{outer}{}", message.name());
    let deeper = |step: i32, index: i32| [at.as_slice(), &[step, index]].concat();
    let mut text = format!("\n### {name}\n");
    let what = comments.at(&at);
    if !what.is_empty() {
        text += &format!("\n{what}\n");
    }
    if message.field.is_empty() {
        text += "\nNo fields.\n";
    } else {
        text += "\n| Field | Type | What it is |\n|---|---|---|\n";
        for (index, field) in (0..).zip(&message.field) {
            let what = comments.at(&deeper(path::FIELD, index));
            text += &format!("| `{}` | {} | {what} |\n", field.name(), kind(field, message));
        }
    }
    texts.insert(name.clone(), text);
    for (index, nested) in (0..).zip(&message.nested_type) {
        message_texts(texts, comments, &format!("{name}."), nested, deeper(path::NESTED, index));
    }
    for (index, nested) in (0..).zip(&message.enum_type) {
        enum_text(texts, comments, &format!("{name}."), nested, deeper(path::NESTED_ENUM, index));
    }
}

fn enum_text(
    texts: &mut BTreeMap<String, String>,
    comments: &Comments,
    outer: &str,
    of: &EnumDescriptorProto,
    at: Vec<i32>,
) {
    let name = format!("{outer}{}", of.name());
    let mut text = format!("\n### {name}\n\n{}\n\n| Value | What it means |\n|---|---|\n", comments.at(&at));
    for (index, value) in (0..).zip(&of.value) {
        let what = comments.at(&[at.as_slice(), &[path::VALUE, index]].concat());
        text += &format!("| `{}` | {what} |\n", value.name());
    }
    texts.insert(name, text);
}

/// "repeated string", "one of `source`: …".
fn kind(field: &FieldDescriptorProto, of: &DescriptorProto) -> String {
    let entry = of.nested_type.iter().find(|nested| {
        field.type_name().ends_with(&format!(".{}", nested.name()))
            && nested.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry)
    });
    if let Some([key, value]) = entry.map(|entry| entry.field.as_slice()) {
        return format!("map of {} to {}", scalar(key), scalar(value));
    }
    let of_one = match field.oneof_index {
        Some(index) if !field.proto3_optional() => {
            let name = usize::try_from(index).ok().and_then(|index| of.oneof_decl.get(index));
            format!("one of `{}`: ", name.map(|one| one.name()).unwrap_or_default())
        }
        _ => String::new(),
    };
    let how = match field.label() {
        Label::Repeated => "repeated ",
        _ if field.proto3_optional() => "optional ",
        _ => "",
    };
    format!("{of_one}{how}{}", scalar(field))
}

fn scalar(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum | Type::Group => link(field.type_name()),
        other => other.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    }
}

/// A type of the package, with where it stands on this page; or somebody else's.
fn link(of: &str) -> String {
    match of.strip_prefix(&format!(".{PACKAGE}.")) {
        Some(name) => format!("[{name}](#{})", name.to_lowercase().replace('.', "")),
        None => format!("`{}`", of.trim_start_matches('.')),
    }
}
