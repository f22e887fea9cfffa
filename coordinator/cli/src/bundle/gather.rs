//! Collects a bundle's parts one by one, each bounded, and the reason for each part that is missing.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use tokio::{
    process::Command,
    sync::{mpsc, watch},
    task::{JoinHandle, spawn_blocking},
    time::{Instant, interval_at, timeout},
};

use super::archive::Archive;
use crate::{error::Error, output::remark};

/// Most bytes of a log, of which the end is kept.
pub(super) const LONGEST_LOG: usize = 20 << 20;
/// Most bytes of any other part.
pub(super) const LONGEST: usize = 4 << 20;
/// Work that takes longer reports its progress.
const SILENCE: Duration = Duration::from_secs(2);

enum Entry {
    Text(String, String),
    Missing(String),
}

/// Takes parts, and writes them beside the runtime.
pub(super) struct Gather {
    entries: mpsc::Sender<Entry>,
    writer: JoinHandle<io::Result<Archive>>,
    stage: watch::Sender<&'static str>,
    progress: JoinHandle<()>,
    missing: Vec<String>,
    pool: DescriptorPool,
    target: PathBuf,
}

impl Gather {
    pub(super) async fn begin(target: &Path, folder: &str, now: SystemTime) -> Result<Self, Error> {
        let pool = DescriptorPool::decode(ringtune_proto::FILE_DESCRIPTOR_SET).map_err(io::Error::other)?;
        let (path, folder) = (target.to_owned(), folder.to_owned());
        let begun = spawn_blocking(move || Archive::begin(&path, &folder, now)).await;
        let mut archive = begun.map_err(io::Error::other)?.map_err(|source| file_error(target, source))?;
        let (entries, mut received) = mpsc::channel(4);
        let writer = spawn_blocking(move || {
            let mut missing = Vec::new();
            while let Some(entry) = received.blocking_recv() {
                match entry {
                    Entry::Text(name, text) if !archive.add(&name, &text)? => {
                        missing.push(format!("{name}: there was no room left for it"));
                    }
                    Entry::Text(..) => {}
                    Entry::Missing(line) => missing.push(line),
                }
            }
            if !missing.is_empty() {
                archive.add("missing.txt", &format!("{}\n", missing.join("\n")))?;
            }
            Ok(archive)
        });
        let (stage, watched) = watch::channel("this machine");
        let progress = tokio::spawn(show(watched));
        Ok(Self { entries, writer, stage, progress, missing: Vec::new(), pool, target: target.to_owned() })
    }

    /// What is collected from now on.
    pub(super) fn stage(&self, what: &'static str) {
        self.stage.send_replace(what);
    }

    /// Adds a part, of which the end is kept if it is too long.
    pub(super) async fn add(&mut self, name: impl Into<String>, text: impl AsRef<str>, longest: usize) {
        let text = end_of(text.as_ref(), longest);
        // Where the writer has failed, finish() says so.
        let _ = self.entries.send(Entry::Text(name.into(), text)).await;
    }

    /// Adds what could be had, or why it could not.
    pub(super) async fn add_or_miss(
        &mut self,
        name: &str,
        part: Result<String, impl ToString>,
        longest: usize,
    ) {
        match part {
            Ok(text) => self.add(name, text, longest).await,
            Err(reason) => self.miss(name, reason.to_string()).await,
        }
    }

    pub(super) async fn miss(&mut self, what: &str, reason: impl AsRef<str>) {
        let line = format!("{what}: {}", reason.as_ref().replace('\n', " "));
        self.missing.push(line.clone());
        let _ = self.entries.send(Entry::Missing(line)).await;
    }

    /// A message of the API as JSON.
    pub(super) fn json(&self, name: &str, message: &impl Message) -> Result<String, String> {
        let named = self.pool.get_message_by_name(&format!("ringtune.v1.{name}"));
        let descriptor = named.ok_or_else(|| format!("there is no message {name}"))?;
        let bytes = message.encode_to_vec();
        let message =
            DynamicMessage::decode(descriptor, bytes.as_slice()).map_err(|error| error.to_string())?;
        let mut written = serde_json::Serializer::new(Vec::new());
        let options = SerializeOptions::new()
            .use_proto_field_name(true)
            .stringify_64_bit_integers(false)
            .skip_default_fields(false);
        message.serialize_with_options(&mut written, &options).map_err(|error| error.to_string())?;
        String::from_utf8(written.into_inner()).map_err(|error| error.to_string())
    }

    /// Several of them, one a line.
    pub(super) fn json_lines<M: Message>(&self, name: &str, messages: &[M]) -> Result<String, String> {
        let mut lines = String::new();
        for message in messages {
            lines.push_str(&self.json(name, message)?);
            lines.push('\n');
        }
        Ok(lines)
    }

    /// Ends the archive. Its size, and what it lacks.
    pub(super) async fn finish(
        self,
        readme: impl FnOnce(&[String], &[String]) -> String,
    ) -> Result<(u64, Vec<String>), Error> {
        drop(self.entries);
        let failed = |source| file_error(&self.target, source);
        let archive = self.writer.await.map_err(io::Error::other)?;
        self.progress.abort();
        let mut archive = archive.map_err(failed)?;
        let text = readme(archive.written(), &self.missing);
        let size = spawn_blocking(move || {
            archive.add("README.txt", &text)?;
            archive.finish()
        });
        let size =
            size.await.map_err(io::Error::other)?.map_err(|source| file_error(&self.target, source))?;
        Ok((size, self.missing))
    }
}

fn file_error(path: &Path, source: io::Error) -> Error {
    Error::File { doing: "cannot write", path: path.to_owned(), source }
}

/// Says what takes long.
async fn show(mut stage: watch::Receiver<&'static str>) {
    let mut ticks = interval_at(Instant::now() + SILENCE, SILENCE);
    let mut said = "";
    loop {
        ticks.tick().await;
        let now = *stage.borrow_and_update();
        if now != said {
            remark(&format!("collecting: {now} …"));
            said = now;
        }
    }
}

/// The end of a text, from the beginning of a line on.
pub(super) fn end_of(text: &str, longest: usize) -> String {
    if text.len() <= longest {
        return text.to_owned();
    }
    let from = (text.len() - longest..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let end = text.get(from..).unwrap_or_default();
    let end = end.split_once('\n').map_or(end, |(_, lines)| lines);
    format!("[cut off before this]\n{end}")
}

/// What a program says on stdout, the end of it, and on stderr if it fails.
pub(super) async fn output_of(
    program: &Path,
    arguments: &[&str],
    longest: usize,
    patience: Duration,
) -> Result<String, String> {
    use tokio::io::AsyncReadExt as _;
    let named = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{named}: {error}"))?;
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    let read = async {
        let reading = async {
            let mut kept: Vec<u8> = Vec::new();
            let mut buffer = vec![0; 64 << 10];
            if let Some(mut out) = out {
                while let Ok(length @ 1..) = out.read(&mut buffer).await {
                    kept.extend_from_slice(buffer.get(..length).unwrap_or_default());
                    // Rarely, because what stays is moved.
                    if kept.len() > 2 * longest {
                        kept.drain(..kept.len() - longest);
                    }
                }
            }
            kept
        };
        let complaints = async {
            let mut text = Vec::new();
            if let Some(errors) = errors {
                let _ = errors.take(64 << 10).read_to_end(&mut text).await;
            }
            text
        };
        let (kept, complaints) = tokio::join!(reading, complaints);
        (kept, complaints, child.wait().await)
    };
    let (kept, complaints, ended) = timeout(patience, read)
        .await
        .map_err(|_| format!("{named}: it did not end within {} s", patience.as_secs()))?;
    let text = String::from_utf8_lossy(&kept).into_owned();
    match ended {
        Ok(status) if status.success() || !text.trim().is_empty() => Ok(end_of(&text, longest)),
        Ok(status) => Err(format!("{named}: {status}: {}", String::from_utf8_lossy(&complaints).trim())),
        Err(error) => Err(format!("{named}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_text_begins_with_a_line() {
        assert_eq!(end_of("ab\ncd\n", 6), "ab\ncd\n");
        assert_eq!(end_of("ab\ncd\nef", 5), "[cut off before this]\nef");
        assert_eq!(end_of("äöü", 3), "[cut off before this]\nü");
    }

    #[tokio::test]
    async fn programs_are_heard_within_bounds() {
        let shell = |script: &'static str, patience: u64| async move {
            output_of(Path::new("/bin/sh"), &["-c", script], 10, Duration::from_millis(patience)).await
        };
        assert_eq!(shell("echo yes; exit 1", 60_000).await, Ok("yes\n".to_owned()));
        let failed = shell("echo why >&2; exit 3", 60_000).await.expect_err("fails");
        assert!(failed.contains("exit status: 3: why"), "{failed}");
        let endless = shell("sleep 600", 50).await.expect_err("ends");
        assert!(endless.contains("did not end"), "{endless}");
        let long =
            shell("i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); done", 60_000).await.expect("ends");
        assert!(long.ends_with("98\n99\n") && long.len() < 40, "{long}");
        let missing = output_of(Path::new("/no/such/program"), &[], 10, Duration::from_secs(1)).await;
        assert!(missing.expect_err("fails").starts_with("program: "));
    }
}
