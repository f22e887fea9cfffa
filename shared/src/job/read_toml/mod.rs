//! Job files: TOML, with the line of everything that is wrong.

mod queue;

use std::collections::BTreeSet;

use toml::Spanned;
use toml::de::DeTable;

use crate::suggest;

use super::{
    ClusterDraft, DebugDraft, JobDraft, JobKind, JobRequest, JobSpec, ModelDraft, OrdersDraft, OutputDraft,
    PointRequest, QueueDraft, QueueSpec, Requested, SpecError, SweepRequest, Violation, kinds, pictures,
    reader::{Keys, Reader, Section, line_of},
    settings::{Appended, Setting},
    sweep::{self, SweepTable},
};

/// A job file may have this many bytes: enough for all templates at their limits.
const LARGEST_FILE: usize = 4 << 20;

/// Reads a job file and fills in the defaults.
///
/// Errors name all unknown keys, wrong types and impossible values at once, each with its line.
pub fn parse_job_toml(text: &str) -> Result<JobSpec, SpecError> {
    parse_job_toml_with(text, &[])
}

/// As [`parse_job_toml`], after each of `settings` has been put into the file, in their order. Errors in one of them
/// name it instead of a line.
pub fn parse_job_toml_with(text: &str, settings: &[Setting]) -> Result<JobSpec, SpecError> {
    parse_job_request(text, settings).map(|request| request.spec)
}

/// As [`parse_job_toml_with`], with what the file says of the queue.
pub fn parse_job_request(text: &str, settings: &[Setting]) -> Result<JobRequest, SpecError> {
    let appended = append(text, settings)?;
    read_job(&appended, &place(&appended)?)
}

/// As [`parse_job_request`], of a file that may ask for several jobs.
pub fn parse_job_file(text: &str, settings: &[Setting]) -> Result<Requested, SpecError> {
    // 1. What is to be swept?
    let appended = append(text, settings)?;
    let mut document = place(&appended)?;
    let Some(section) = document.remove(sweep::SECTION) else {
        return Ok(Requested::Job(Box::new(read_job(&appended, &document)?)));
    };
    let table = SweepTable::read(&appended.text, &section).map_err(|mut violations| {
        violations.iter_mut().for_each(|violation| appended.name_origin(violation));
        SpecError { violations }
    })?;
    let points = table.points().map_err(|violation| SpecError { violations: vec![violation] })?;
    // 2. One job for each combination. What is wrong with all of them is said once.
    let (mut requests, mut violations) = (Vec::with_capacity(points.len()), Vec::new());
    for point in points {
        let settings = [settings, &point.settings].concat();
        let appended = append(text, &settings)?;
        let mut document = place(&appended)?;
        document.remove(sweep::SECTION);
        match read_job(&appended, &document) {
            Ok(request) => requests.push(PointRequest { settings: point.shown, request }),
            Err(error) => {
                let known = |one: &Violation| {
                    violations
                        .iter()
                        .any(|known: &Violation| known.field == one.field && known.line == one.line)
                };
                let new: Vec<Violation> = error.violations.into_iter().filter(|one| !known(one)).collect();
                violations.extend(new);
            }
        }
    }
    if !violations.is_empty() {
        return Err(SpecError { violations });
    }
    // 3. Can they be compared? How many steps they have may not be known yet.
    let halving = table.halving;
    let specs: Vec<&JobSpec> = requests.iter().map(|point| &point.request.spec).collect();
    if halving && !specs.iter().any(|spec| spec.needs_image_count()) {
        sweep::rungs(&specs, 0)?;
    }
    Ok(Requested::Sweep(SweepRequest { points: requests, halving }))
}

/// The text with settings behind it.
fn append<'settings>(text: &str, settings: &'settings [Setting]) -> Result<Appended<'settings>, SpecError> {
    if text.len() > LARGEST_FILE {
        let problem = format!("the job file has {} bytes; allowed: at most {LARGEST_FILE}", text.len());
        return Err(SpecError { violations: vec![Violation::new("", problem)] });
    }
    // The file by itself first: what is appended must neither hide nor move its mistakes.
    let alone = parse_document(text)?;
    Ok(Appended::new(text, &alone, settings))
}

/// The document, with its settings in their places.
fn place<'text>(appended: &'text Appended<'_>) -> Result<DeTable<'text>, SpecError> {
    let mut document = parse_document(&appended.text)?;
    appended.put_in_place(&mut document).map_err(|violation| SpecError { violations: vec![violation] })?;
    Ok(document)
}

fn read_job(appended: &Appended<'_>, document: &DeTable<'_>) -> Result<JobRequest, SpecError> {
    let mut reader = Reader::new(&appended.text, pictures::FOREIGN_KEYS);
    let (draft, queue) = reader.job(document);
    let Reader { mut violations, lines, .. } = reader;
    let (spec, queue) = match (JobSpec::from_draft(draft), QueueSpec::from_draft(queue)) {
        (Ok(spec), Ok(queue)) if violations.is_empty() => return Ok(JobRequest { spec, queue }),
        (spec, queue) => (spec.err(), queue.err()),
    };
    let mistyped = mistyped_sections(document);
    for mut violation in spec.into_iter().chain(queue).flat_map(|error| error.violations) {
        // A field whose type is wrong came here as missing: one complaint is enough.
        if violations.iter().any(|earlier| earlier.field == violation.field) {
            continue;
        }
        // What stands in a section whose name is mistyped is missing in none.
        let section = violation.field.split_once('.').map_or("", |(section, _)| section);
        if mistyped.contains(&section) && violation.is_missing() {
            continue;
        }
        // What is missing in one of several tables is shown at its head.
        let table = violation.field.starts_with("concepts[").then(|| violation.field.split('.').next());
        let line = lines.get(&violation.field).or_else(|| lines.get(table.flatten()?));
        violation.line = line.copied();
        violations.push(violation);
    }
    violations.sort_by_key(|violation| violation.line.unwrap_or(usize::MAX));
    violations.iter_mut().for_each(|violation| appended.name_origin(violation));
    Err(SpecError { violations })
}

/// The sections that are meant by tables of another name.
fn mistyped_sections(document: &DeTable<'_>) -> Vec<&'static str> {
    let sections: BTreeSet<&'static str> =
        sections_of_keys(None).into_iter().map(|(_, section)| section).collect();
    let tables =
        document.iter().filter(|(_, value)| value.get_ref().is_table()).map(|(key, _)| key.get_ref());
    let unknown = tables.filter(|name| !sections.contains(name.as_ref()));
    unknown.filter_map(|name| suggest::nearest(name.as_ref(), sections.iter().copied())).collect()
}

fn parse_document(text: &str) -> Result<DeTable<'_>, SpecError> {
    DeTable::parse(text).map(Spanned::into_inner).map_err(|error| {
        let line = error.span().map(|span| line_of(text, span));
        let problem = format!("not valid TOML: {}", error.message());
        SpecError { violations: vec![Violation { field: String::new(), problem, line }] }
    })
}

/// Every key of a job file with its section, for "belongs to"; sections that a job of this kind does not have come last.
fn sections_of_keys(kind: Option<JobKind>) -> Vec<(&'static str, &'static str)> {
    let common = [
        ("model", ModelDraft::keys()),
        ("cluster", ClusterDraft::keys()),
        ("debug", DebugDraft::keys()),
        ("output", OutputDraft::keys()),
        ("orders", OrdersDraft::keys()),
        ("queue", queue::KEYS.to_vec()),
    ];
    let common =
        common.into_iter().flat_map(|(section, keys)| keys.into_iter().map(move |key| (key, section)));
    common.chain(kinds::sections_of_keys(kind)).collect()
}

impl Reader<'_> {
    fn job(&mut self, document: &DeTable<'_>) -> (JobDraft, QueueDraft) {
        let mut top = Section { name: String::new(), table: Some(document), known: Vec::new() };
        let kind = self.string(&mut top, "kind");
        let known: Option<JobKind> = kind.as_deref().and_then(|kind| kind.parse().ok());
        self.foreign_keys = known.map_or(pictures::FOREIGN_KEYS, JobKind::foreign_keys);
        self.sections_of_keys = sections_of_keys(known);
        let name = self.string(&mut top, "name");

        let model = self.keys(&mut top, "model");
        let mut draft = JobDraft { kind, name, model, ..JobDraft::default() };
        draft.read_sections(self, &mut top);
        draft.cluster = self.keys(&mut top, "cluster");
        draft.debug = self.keys(&mut top, "debug");
        draft.output = self.keys(&mut top, "output");
        draft.orders = self.keys(&mut top, "orders");

        let mut section = self.section(&mut top, "queue");
        let queue = self.queue(&mut section);
        self.refuse_unknown(section);

        draft.concepts = self.tables(&mut top, "concepts").unwrap_or_default();

        if let Some(several) = self.take(&mut top, sweep::SECTION) {
            let problem =
                "makes several jobs, and one is wanted here; allowed: for `ringtune submit` and CreateSweep";
            let line = Some(line_of(self.text, several.span()));
            let field = sweep::SECTION.to_owned();
            self.violations.push(Violation { field, problem: problem.to_owned(), line });
        }

        self.refuse_unknown(top);
        (draft, queue)
    }
}
