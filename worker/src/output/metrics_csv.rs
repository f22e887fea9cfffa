//! `metrics.csv`: one line a step.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use super::{Error, read_back::different};

/// The file's name.
pub const FILE_NAME: &str = "metrics.csv";
const HEADER: &str = "step,loss,lr,step_seconds,compute_seconds,exchange_seconds,wait_seconds,\
    validation_loss,validation_seconds,preview_seconds,hidden_exchange_seconds,sent_bytes,bus_bytes_per_second";
/// Fields that may be empty.
const MAY_BE_EMPTY: [&str; 4] =
    ["validation_loss", "hidden_exchange_seconds", "sent_bytes", "bus_bytes_per_second"];

/// A line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepMetrics {
    /// From 1.
    pub step: u64,
    /// Mean over the global batch; NaN or infinite in a skipped step.
    pub loss: f32,
    /// The learning rate that the step was taken with.
    pub lr: f64,
    /// From the step's begin to its end, on rank 0.
    pub step_seconds: f64,
    /// Of it, in the engine.
    pub compute_seconds: f64,
    /// Of it, sending and receiving that no computation hid.
    pub exchange_seconds: f64,
    /// Of it, waiting for slower ranks.
    pub wait_seconds: f64,
    /// On the held-out samples, after the step; where it was not taken, its field is empty.
    pub validation_loss: Option<f32>,
    /// Taking it; not in step_seconds.
    pub validation_seconds: f64,
    /// Drawing pictures; not in step_seconds.
    pub preview_seconds: f64,
    /// Traffic. None: of a step of an earlier release; the fields are empty.
    pub traffic: Option<CsvTraffic>,
}

/// Traffic of a step at rank 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CsvTraffic {
    /// Sending and receiving while rank 0 computed; in compute_seconds.
    pub hidden_exchange_seconds: f64,
    /// Payload that it sent.
    pub sent_bytes: u64,
    /// The bandwidth of its collectives; docs/metrics.md says how it is counted.
    pub bus_bytes_per_second: f64,
}

/// A metrics.csv that grows. Every line is handed to the system at once, so that a file cut short by a crash holds
/// whole steps.
#[derive(Debug)]
pub struct MetricsCsv {
    path: PathBuf,
    file: BufWriter<File>,
    steps: u64,
    last_line: String,
}

impl MetricsCsv {
    /// Starts a new file, over one that was there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let file = File::create(path).map_err(|error| Error::writing(path, error))?;
        let mut csv =
            Self { path: path.to_path_buf(), file: BufWriter::new(file), steps: 0, last_line: String::new() };
        csv.line(HEADER.to_owned())?;
        Ok(csv)
    }

    /// Adds a step: numbers in their shortest exact spelling, seconds in microseconds.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, metrics: &StepMetrics) -> Result<(), Error> {
        let StepMetrics { step, loss, lr, .. } = metrics;
        let StepMetrics { step_seconds, compute_seconds, exchange_seconds, wait_seconds, .. } = metrics;
        let StepMetrics { validation_loss, validation_seconds, preview_seconds, .. } = metrics;
        let validation_loss = validation_loss.map(|loss| loss.to_string()).unwrap_or_default();
        let traffic = metrics.traffic.map(|traffic| {
            let CsvTraffic { hidden_exchange_seconds, sent_bytes, bus_bytes_per_second } = traffic;
            format!("{hidden_exchange_seconds:.6},{sent_bytes},{bus_bytes_per_second:.0}")
        });
        let traffic = traffic.unwrap_or_else(|| ",,".to_owned());
        self.line(format!(
            "{step},{loss},{lr},{step_seconds:.6},{compute_seconds:.6},{exchange_seconds:.6},{wait_seconds:.6},\
             {validation_loss},{validation_seconds:.6},{preview_seconds:.6},{traffic}"
        ))?;
        self.steps += 1;
        Ok(())
    }

    /// Ends the file, puts it on the disk and reads it back.
    ///
    /// # Errors
    /// The file cannot be written, or holds something else than was written.
    pub fn finish(self) -> Result<(), Error> {
        let file = self.file.into_inner().map_err(|error| Error::writing(&self.path, error.into_error()))?;
        file.sync_all().map_err(|error| Error::writing(&self.path, error))?;
        read_back(&self.path, self.steps, &self.last_line)
    }

    fn line(&mut self, line: String) -> Result<(), Error> {
        let written = writeln!(self.file, "{line}").and_then(|()| self.file.flush());
        self.last_line = line;
        written.map_err(|error| Error::writing(&self.path, error))
    }
}

/// The header, then `steps` lines of as many numbers as it has names, the last of them `last_line`.
fn read_back(path: &Path, steps: u64, last_line: &str) -> Result<(), Error> {
    let unreadable = |error: std::io::Error| different(path, error.to_string());
    let mut lines = BufReader::new(File::open(path).map_err(unreadable)?).lines();
    let mut line = lines.next().transpose().map_err(unreadable)?.unwrap_or_default();
    if line != HEADER {
        return Err(different(path, format!("its first line is {line:?}, not the header")));
    }
    let mut found = 0;
    for next in lines {
        line = next.map_err(unreadable)?;
        found += 1;
        let is_good = |(field, name): &(&str, &str)| {
            field.parse::<f64>().is_ok() || (field.is_empty() && MAY_BE_EMPTY.contains(name))
        };
        let names = HEADER.split(',').count();
        let good = line.split(',').zip(HEADER.split(',')).filter(is_good).count();
        if good != names || line.split(',').count() != names {
            return Err(different(path, format!("line {} is {line:?}", found + 1)));
        }
    }
    if found != steps || line != last_line {
        return Err(different(path, format!("it ends after {found} of {steps} steps with {line:?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_and_a_line_a_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let mut csv = MetricsCsv::create(&path).unwrap();
        let first = StepMetrics {
            step: 1,
            loss: 0.1,
            lr: 2e-7,
            step_seconds: 1.5,
            compute_seconds: 1.25,
            exchange_seconds: 0.0,
            wait_seconds: 1e-6,
            validation_loss: None,
            validation_seconds: 0.0,
            preview_seconds: 0.5,
            traffic: None,
        };
        let traffic = Some(CsvTraffic {
            hidden_exchange_seconds: 0.25,
            sent_bytes: 1_048_576,
            bus_bytes_per_second: 2_500_000.4,
        });
        csv.append(&first).unwrap();
        csv.append(&StepMetrics { step: 2, loss: f32::NAN, validation_loss: Some(0.25), traffic, ..first })
            .unwrap();
        // Whole before the end.
        let expected = "step,loss,lr,step_seconds,compute_seconds,exchange_seconds,wait_seconds,\
            validation_loss,validation_seconds,preview_seconds,hidden_exchange_seconds,sent_bytes,bus_bytes_per_second\n\
            1,0.1,0.0000002,1.500000,1.250000,0.000000,0.000001,,0.000000,0.500000,,,\n\
            2,NaN,0.0000002,1.500000,1.250000,0.000000,0.000001,0.25,0.000000,0.500000,0.250000,1048576,2500000\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        csv.finish().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn a_file_that_was_changed_meanwhile_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let (zero, one) = ("1,0,0,0,0,0,0,,0,0,,,", "1,1,0,0,0,0,0,0.5,0,0,0,7,0");
        let contents = [
            (format!("{HEADER}\n{zero}\n"), true),
            (format!("{HEADER}\n{one}\n"), false),
            (format!("{HEADER}\n{zero}\n{zero}\n"), false),
            (format!("{HEADER}\n"), false),
            (format!("{HEADER}\n1,x,0,0,0,0,0,,0,0,,,\n"), false),
            (format!("{HEADER}\n1,0,0,0,0,0,,,0,0,,,\n"), false),
            (format!("{HEADER}\n1,0,0,0,0,0,0,,0,0,0,0,0,0\n"), false),
            (format!("{zero}\n"), false),
            (String::new(), false),
        ];
        for (content, good) in contents {
            std::fs::write(&path, &content).unwrap();
            let read = read_back(&path, 1, zero);
            assert!(
                read.is_ok() == good && !matches!(read, Err(Error::Write { .. })),
                "{content:?}: {read:?}"
            );
        }
    }

    /// Linux's /dev/full takes nothing.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_told() {
        assert!(matches!(MetricsCsv::create(Path::new("/dev/full")), Err(Error::DiskFull { .. })));
    }
}
