//! A file of events that TensorBoard reads: scalars of every step, and pictures.
//!
//! The file is a sequence of records, each a length, the length's checksum, a message and the message's checksum.
//! Source: tensorflow/core/lib/io/record_writer.h; tensorflow/core/util/event.proto and framework/summary.proto.

use std::{
    fs::File,
    io::{BufReader, BufWriter, Read, Write as _},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use prost::Message as _;
use ringtune_shared::checksum::crc32c;

use super::{Error, StepMetrics, read_back::different};

/// The file's name: TensorBoard takes every file with "tfevents" in its name.
const FILE_NAME: &str = "events.out.tfevents.ringtune";
/// TensorFlow's SessionLog.START: what there is of this step and later ones was made by a run that this one takes the place of.
const START: i32 = 1;
/// The first record of every file says so.
const FILE_VERSION: &str = "brain.Event:2";
/// Nothing that is written here is longer: the picture of the largest resolution, as a PNG that could not be packed.
const LONGEST_RECORD: u64 = 256 << 20;
/// TensorFlow's mask of checksums (tensorflow/core/lib/hash/crc32c.h): one of bytes that hold their own checksum would
/// otherwise say nothing.
const MASK: u32 = 0xa282_ead8;
/// diffusers' name of the pictures.
const PICTURES: &str = "validation";

#[derive(Clone, PartialEq, prost::Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Value>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "4")]
    image: Option<Image>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Image {
    #[prost(int32, tag = "1")]
    height: i32,
    #[prost(int32, tag = "2")]
    width: i32,
    /// Channels: 3 is RGB.
    #[prost(int32, tag = "3")]
    colorspace: i32,
    #[prost(bytes = "vec", tag = "4")]
    encoded_image_string: Vec<u8>,
}

/// A picture as a PNG.
#[derive(Clone, Debug)]
pub struct EventPicture {
    /// "0", "best/0" …
    pub label: String,
    /// Pixel rows.
    pub height: usize,
    /// Pixel columns.
    pub width: usize,
    /// The file's bytes.
    pub png: Vec<u8>,
}

/// A file of events that grows. Every record is handed to the system at once.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: BufWriter<File>,
    records: u64,
}

/// The name of the file of a job whose first step is `first_step`. One that goes on from a checkpoint has a name of its own, so
/// that its file lies beside that of the steps before. TensorBoard reads them in the order of their names, which is the steps'.
pub fn file_name(first_step: u64) -> String {
    if first_step <= 1 { FILE_NAME.to_owned() } else { format!("{FILE_NAME}.from-step-{first_step:010}") }
}

impl EventFile {
    /// Starts a new file in a folder, over one that was there, for a job whose first step is `first_step`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(folder: &Path, first_step: u64) -> Result<Self, Error> {
        let mut events = Self::open(folder.join(file_name(first_step)))?;
        if first_step > 1 {
            // The run before may have come further than its checkpoint.
            let session_log = Some(SessionLog { status: START });
            events.record(&Event { session_log, ..event(first_step) })?;
        }
        Ok(events)
    }

    fn open(path: PathBuf) -> Result<Self, Error> {
        let file = File::create(&path).map_err(|error| Error::writing(&path, error))?;
        let mut events = Self { path, file: BufWriter::new(file), records: 0 };
        events.record(&Event { file_version: Some(FILE_VERSION.to_owned()), ..event(0) })?;
        Ok(events)
    }

    /// Adds a step's scalars. diffusers' script has `loss` and `lr`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append_step(&mut self, metrics: &StepMetrics) -> Result<(), Error> {
        let mut values = vec![
            scalar("loss", metrics.loss),
            scalar("lr", metrics.lr as f32),
            scalar("step_seconds", metrics.step_seconds as f32),
        ];
        values.extend(metrics.validation_loss.map(|loss| scalar("validation_loss", loss)));
        self.record(&Event { summary: Some(Summary { values }), ..event(metrics.step) })
    }

    /// Adds the pictures drawn after `step`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append_pictures(&mut self, step: u64, pictures: Vec<EventPicture>) -> Result<(), Error> {
        let value = |picture: EventPicture| Value {
            tag: format!("{PICTURES}/{}", picture.label),
            simple_value: None,
            image: Some(Image {
                height: picture.height as i32,
                width: picture.width as i32,
                colorspace: 3,
                encoded_image_string: picture.png,
            }),
        };
        // A record per picture: records are read whole.
        for picture in pictures {
            let summary = Some(Summary { values: vec![value(picture)] });
            self.record(&Event { summary, ..event(step) })?;
        }
        Ok(())
    }

    /// Ends the file, puts it on the disk and reads it back. Its name.
    ///
    /// # Errors
    /// The file cannot be written, or holds something else than was written.
    pub fn finish(self) -> Result<String, Error> {
        let file = self.file.into_inner().map_err(|error| Error::writing(&self.path, error.into_error()))?;
        file.sync_all().map_err(|error| Error::writing(&self.path, error))?;
        let found = read_back(&self.path)?;
        if found != self.records {
            return Err(different(&self.path, format!("it holds {found} of {} records", self.records)));
        }
        Ok(self.path.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }

    fn record(&mut self, event: &Event) -> Result<(), Error> {
        let message = event.encode_to_vec();
        let length = (message.len() as u64).to_le_bytes();
        let parts: [&[u8]; 4] = [
            &length,
            &masked_crc32c(&length).to_le_bytes(),
            &message,
            &masked_crc32c(&message).to_le_bytes(),
        ];
        let written =
            parts.iter().try_for_each(|part| self.file.write_all(part)).and_then(|()| self.file.flush());
        written.map_err(|error| Error::writing(&self.path, error))?;
        self.records += 1;
        Ok(())
    }
}

fn scalar(tag: &str, value: f32) -> Value {
    Value { tag: tag.to_owned(), simple_value: Some(value), image: None }
}

fn event(step: u64) -> Event {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Event {
        wall_time: since.map_or(0.0, |since| since.as_secs_f64()),
        step: i64::try_from(step).unwrap_or(i64::MAX),
        file_version: None,
        summary: None,
        session_log: None,
    }
}

/// Number of intact records in the file that are events.
fn read_back(path: &Path) -> Result<u64, Error> {
    let mut records = 0;
    read(path, |_| records += 1)?;
    Ok(records)
}

/// Reads all events of a file.
fn read(path: &Path, mut found: impl FnMut(Event)) -> Result<(), Error> {
    let unreadable = |error: std::io::Error| different(path, error.to_string());
    let mut reader = BufReader::new(File::open(path).map_err(unreadable)?);
    let end = std::fs::metadata(path).map_err(unreadable)?.len();
    let (mut place, mut records) = (0, 0);
    while place < end {
        let wrong = |what: &str| different(path, format!("record {records}: {what}"));
        let mut head = [0; 12];
        reader.read_exact(&mut head).map_err(unreadable)?;
        let (length, length_sum) = head.split_at(8);
        if masked_crc32c(length).to_le_bytes() != length_sum {
            return Err(wrong("the length has another checksum"));
        }
        let length = u64::from_le_bytes(head[..8].try_into().unwrap_or_default());
        if length > LONGEST_RECORD {
            return Err(wrong("it is longer than any that is written"));
        }
        let mut message = vec![0; length as usize + 4];
        reader.read_exact(&mut message).map_err(unreadable)?;
        let (message, sum) = message.split_at(length as usize);
        if masked_crc32c(message).to_le_bytes() != sum {
            return Err(wrong("the message has another checksum"));
        }
        found(Event::decode(message).map_err(|error| wrong(&error.to_string()))?);
        place += 16 + length;
        records += 1;
    }
    Ok(())
}

fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: StepMetrics = StepMetrics {
        step: 1,
        loss: 0.5,
        lr: 0.01,
        step_seconds: 1.0,
        compute_seconds: 1.0,
        exchange_seconds: 0.0,
        wait_seconds: 0.0,
        validation_loss: Some(0.0),
        validation_seconds: 0.0,
        preview_seconds: 0.0,
        traffic: None,
    };

    fn written() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let mut events = EventFile::create(folder.path(), 1).unwrap();
        events.append_step(&STEP).unwrap();
        let picture = EventPicture { label: "0".to_owned(), height: 1, width: 1, png: vec![1, 2, 3] };
        events.append_pictures(1, vec![picture.clone(), picture]).unwrap();
        assert_eq!(events.finish().unwrap(), FILE_NAME);
        (folder, path)
    }

    #[test]
    fn every_changed_or_missing_byte_is_found() {
        let (_folder, path) = written();
        assert_eq!(read_back(&path).unwrap(), 4);
        let whole = std::fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 0x10;
            std::fs::write(&path, &changed).unwrap();
            assert!(matches!(read_back(&path), Err(Error::ReadBack { .. })), "byte {place}");
        }
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(read_back(&path).is_err());
    }

    /// As TensorBoard does: all files of the folder by name, where a start takes the place of what came after it before.
    #[test]
    fn whoever_goes_on_adds_a_file_and_no_step_is_lost_or_there_twice() {
        let folder = tempfile::tempdir().unwrap();
        // A run to step 8, one from its checkpoint after step 6, and one that resumed that.
        for (first, last) in [(1, 8), (7, 12), (13, 13)] {
            let mut events = EventFile::create(folder.path(), first).unwrap();
            (first..=last).for_each(|step| events.append_step(&StepMetrics { step, ..STEP }).unwrap());
            assert_eq!(events.finish().unwrap(), file_name(first));
        }
        let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<PathBuf> = names.collect();
        names.sort();
        assert_eq!(names.len(), 3);
        let mut steps: Vec<i64> = Vec::new();
        for name in &names {
            let mut version = None;
            read(name, |event| {
                version = version.take().or(event.file_version);
                if event.session_log.is_some_and(|log| log.status == START) {
                    steps.retain(|step| *step < event.step);
                }
                steps.extend(event.summary.map(|_| event.step));
            })
            .unwrap();
            assert_eq!(version.as_deref(), Some(FILE_VERSION));
        }
        assert_eq!(steps, (1..=13).collect::<Vec<_>>());
        assert!([1, 2, 9, 10, 100_000].map(file_name).is_sorted());
    }

    /// A scalar of 0 is there all the same.
    #[test]
    fn a_step_has_its_scalars() {
        let mut events = Event { summary: None, ..event(7) };
        events.summary = Some(Summary { values: vec![scalar("validation_loss", 0.0)] });
        let read = Event::decode(events.encode_to_vec().as_slice()).unwrap();
        assert_eq!(read.summary.unwrap().values[0].simple_value, Some(0.0));
        assert_eq!(read.step, 7);
    }

    #[test]
    fn a_full_disk_is_told() {
        assert!(matches!(EventFile::open("/dev/full".into()), Err(Error::DiskFull { .. })));
    }
}
