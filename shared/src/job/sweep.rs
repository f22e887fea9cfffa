//! `[sweep]`: one job for each combination of values of some options, and which of them go on where half of them end early.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::reader::line_of;
use super::{JobRequest, JobSpec, Setting, SpecError, Violation};
use crate::names;

/// The most jobs that a sweep may have.
pub const MOST_POINTS: usize = 256;
/// Characters of a value that are shown.
const LONGEST_SHOWN: usize = 80;
/// The section.
pub(super) const SECTION: &str = "sweep";
/// Its only key that is no option of a job.
const HALVING: &str = "halving";

/// What a job file asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Requested {
    /// One job.
    Job(Box<JobRequest>),
    /// One for each point.
    Sweep(SweepRequest),
}

/// The jobs of a file with `[sweep]`.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepRequest {
    /// 2 to [`MOST_POINTS`], in the order of their options' names and of the values in the file.
    pub points: Vec<PointRequest>,
    /// After each round the worse half ends.
    pub halving: bool,
}

/// One job of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct PointRequest {
    /// Its values by their options' full names.
    pub settings: BTreeMap<String, String>,
    /// The job.
    pub request: JobRequest,
}

/// The end of a round of successive halving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rung {
    /// The jobs are compared by their validation loss after this step.
    pub step: u64,
    /// So many go on.
    pub keep: u32,
}

/// Where successive halving compares these jobs, of which `done` steps are done before they begin: each round has twice the steps
/// of the one before and keeps half of the jobs, the larger half of an odd number. A round ends with a validation.
///
/// # Errors
/// They cannot be compared: other numbers of steps, or no validation before the last one.
pub fn rungs(jobs: &[&JobSpec], done: u64) -> Result<Vec<Rung>, SpecError> {
    let refuse = |problem: &str| {
        let violations = vec![Violation::new(format!("{SECTION}.{HALVING}"), problem)];
        Err(SpecError { violations })
    };
    let steps = |job: &&JobSpec| job.steps().map(|steps| (steps.last, steps.validation_interval));
    let Some((last, interval)) = jobs.first().and_then(steps) else {
        return refuse("these jobs learn nothing; allowed: for jobs that have steps");
    };
    if jobs.iter().any(|job| steps(job) != Some((last, interval))) {
        return refuse(
            "the jobs have other numbers of steps, or validations after other steps; allowed: the same of all",
        );
    }
    if interval == 0 {
        return refuse(
            "it goes by the validation loss: give train.validation_loss_steps, or gpt2.eval_interval",
        );
    }
    let points = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    let rounds = points.checked_ilog2().unwrap_or(0);
    let mut rungs: Vec<Rung> = Vec::new();
    for round in 1..=rounds {
        let keep = points.div_ceil(1 << round);
        let step = done + (last.saturating_sub(done) >> (rounds + 1 - round));
        let step = step.max(done + 1).next_multiple_of(interval);
        match rungs.last_mut() {
            _ if step >= last => break,
            Some(rung) if rung.step == step => rung.keep = keep,
            _ => rungs.push(Rung { step, keep }),
        }
    }
    if rungs.is_empty() {
        return refuse(
            "no validation comes early enough in these jobs to end one of them; validate more often",
        );
    }
    Ok(rungs)
}

/// `[sweep]` as it stands in a file.
pub(super) struct SweepTable {
    /// The values of each option, by its full name.
    axes: BTreeMap<String, Vec<SweptValue>>,
    pub(super) halving: bool,
}

struct SweptValue {
    /// In TOML.
    text: String,
    /// For people.
    shown: String,
}

impl SweepTable {
    /// Reads the section; all that is wrong with it is found at once. `text`: the whole file.
    pub(super) fn read(text: &str, section: &Spanned<DeValue<'_>>) -> Result<Self, Vec<Violation>> {
        let mut reading = Reading { text, axes: BTreeMap::new(), halving: false, violations: Vec::new() };
        match section.get_ref() {
            DeValue::Table(table) => reading.table(&[], table),
            _ => reading.refuse(
                &[],
                section,
                "allowed: a table, such as \"train.learning_rate\" = [1e-3, 2e-3]",
            ),
        }
        let points = reading.axes.values().map(Vec::len).fold(1, usize::saturating_mul);
        if reading.violations.is_empty() && !(2..=MOST_POINTS).contains(&points) {
            let given = if reading.axes.is_empty() { 0 } else { points };
            reading.refuse(&[], section, &format!("{given} jobs; allowed: 2 to {MOST_POINTS}"));
        }
        let Reading { axes, halving, violations, .. } = reading;
        if violations.is_empty() { Ok(Self { axes, halving }) } else { Err(violations) }
    }

    /// Every combination of the values; the last option's values change first.
    ///
    /// # Errors
    /// A name that is none.
    pub(super) fn points(&self) -> Result<Vec<Combination>, Violation> {
        let mut points = vec![Combination::default()];
        for (key, values) in &self.axes {
            let mut more = Vec::with_capacity(points.len() * values.len());
            for point in &points {
                for value in values {
                    let mut point = point.clone();
                    point.settings.push(Setting::of_sweep(key, &value.text)?);
                    point.shown.insert(key.clone(), value.shown.clone());
                    more.push(point);
                }
            }
            points = more;
        }
        Ok(points)
    }
}

/// One value of each option.
#[derive(Clone, Default)]
pub(super) struct Combination {
    /// What is put into the file for it.
    pub(super) settings: Vec<Setting>,
    /// The same for people, by the options' full names.
    pub(super) shown: BTreeMap<String, String>,
}

struct Reading<'text> {
    text: &'text str,
    axes: BTreeMap<String, Vec<SweptValue>>,
    halving: bool,
    violations: Vec<Violation>,
}

impl Reading<'_> {
    fn refuse(&mut self, path: &[&str], at: &Spanned<DeValue<'_>>, problem: &str) {
        let field = [&[SECTION], path].concat().join(".");
        let field = field.chars().take(100).collect();
        let line = Some(line_of(self.text, at.span()));
        self.violations.push(Violation { field, problem: problem.to_owned(), line });
    }

    /// A table within the section: `path` leads to it. Its keys may have dots.
    fn table(&mut self, path: &[&str], table: &DeTable<'_>) {
        for (key, value) in table.iter() {
            let key: &str = key.get_ref().borrow();
            let path = [path, &[key]].concat();
            match value.get_ref() {
                DeValue::Boolean(halving) if path == [HALVING] => self.halving = *halving,
                _ if path == [HALVING] => self.refuse(&path, value, "allowed: true or false"),
                DeValue::Table(table) => self.table(&path, table),
                DeValue::Array(values) if !values.is_empty() => {
                    let values = values.iter().map(|one| self.value(one)).collect();
                    self.axis(&path, value, values);
                }
                other => match other.as_str().and_then(range) {
                    Some(values) => self.axis(&path, value, values),
                    None => self.refuse(
                        &path,
                        value,
                        &format!("allowed: a list of values, or whole numbers from one to another, as in \"1..8\", of which there are at most {MOST_POINTS}"),
                    ),
                },
            }
        }
    }

    fn value(&self, value: &Spanned<DeValue<'_>>) -> SweptValue {
        let text = self.text.get(value.span()).unwrap_or_default().to_owned();
        let shown: String = value.get_ref().as_str().unwrap_or(&text).chars().take(LONGEST_SHOWN).collect();
        let shown = names::visible(&shown).replace(['\n', '\t'], " ");
        SweptValue { text, shown }
    }

    fn axis(&mut self, path: &[&str], at: &Spanned<DeValue<'_>>, values: Vec<SweptValue>) {
        if path.first().is_some_and(|first| first.split('.').next() == Some(SECTION)) {
            self.refuse(path, at, "a sweep has no values of its own; allowed: options of a job");
        } else if self.axes.insert(path.join("."), values).is_some() {
            self.refuse(path, at, "given twice");
        }
    }
}

/// The whole numbers of "1..8", which are eight.
fn range(text: &str) -> Option<Vec<SweptValue>> {
    let (first, last) = text.split_once("..")?;
    let (first, last) = (first.trim().parse::<u64>().ok()?, last.trim().parse::<u64>().ok()?);
    let few = last.checked_sub(first).is_some_and(|steps| steps < MOST_POINTS as u64);
    let value = |number: u64| SweptValue { text: number.to_string(), shown: number.to_string() };
    few.then(|| (first..=last).map(value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::parse_job_file;

    const JOB: &str = "kind = \"gpt2_finetune\"\nname = \"s\"\n[model]\nbase = \"/m\"\n[gpt2]\ntokens = \"/t\"\n\
                       max_iters = 1000\neval_interval = 10\n";

    fn sweep(section: &str) -> Result<SweepRequest, Vec<String>> {
        match parse_job_file(&format!("{JOB}{section}"), &[]) {
            Ok(Requested::Sweep(sweep)) => Ok(sweep),
            Ok(Requested::Job(_)) => Err(vec!["one job".to_owned()]),
            Err(error) => Err(error.violations.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn each_combination_is_a_job_that_differs_in_nothing_else() {
        let section =
            "[sweep]\n\"gpt2.learning_rate\" = [1e-3, 2e-3]\ngpt2.seed = \"3..5\"\nhalving = true\n";
        let found = sweep(section).unwrap();
        assert!(found.halving);
        let shown: Vec<String> = found
            .points
            .iter()
            .map(|point| format!("{:?}", point.settings.values().collect::<Vec<_>>()))
            .collect();
        let expected = [("1e-3", 3), ("1e-3", 4), ("1e-3", 5), ("2e-3", 3), ("2e-3", 4), ("2e-3", 5)];
        assert_eq!(shown, expected.map(|(rate, seed)| format!("[{rate:?}, \"{seed}\"]")));
        for (point, (rate, seed)) in found.points.iter().zip(expected) {
            let alone = JOB.to_owned() + &format!("learning_rate = {rate}\nseed = {seed}\n");
            let Requested::Job(alone) = parse_job_file(&alone, &[]).unwrap() else { panic!("a sweep") };
            assert_eq!(point.request, *alone);
        }
        let settings = ["sweep.gpt2.seed=1..2".parse().unwrap(), "sweep.halving=true".parse().unwrap()];
        let Requested::Sweep(found) = parse_job_file(JOB, &settings).unwrap() else { panic!("a job") };
        assert_eq!((found.points.len(), found.halving), (2, true));
    }

    #[test]
    fn what_is_wrong_with_a_sweep_is_said_once_with_its_place() {
        for (section, problem) in [
            ("[sweep]\n", "line 9: sweep: 0 jobs; allowed: 2 to 256"),
            ("[sweep]\ngpt2.seed = [1]\n", "line 9: sweep: 1 jobs; allowed: 2 to 256"),
            (
                "[sweep]\ngpt2.seed = \"1..257\"\n",
                "line 10: sweep.gpt2.seed: allowed: a list of values, or whole",
            ),
            (
                "[sweep]\ngpt2.seed = \"8..1\"\n",
                "line 10: sweep.gpt2.seed: allowed: a list of values, or whole",
            ),
            ("[sweep]\ngpt2.seed = []\n", "line 10: sweep.gpt2.seed: allowed: a list of values, or whole"),
            ("[sweep]\ngpt2.seed = 7\n", "line 10: sweep.gpt2.seed: allowed: a list of values, or whole"),
            (
                "[sweep]\ngpt2.seed = \"1..200\"\ngpt2.beta1 = [0.8, 0.9]\n",
                "line 9: sweep: 400 jobs; allowed: 2 to 256",
            ),
            ("[sweep]\nhalving = 1\ngpt2.seed = [1, 2]\n", "line 10: sweep.halving: allowed: true or false"),
            (
                "[sweep]\n\"gpt2.seed\" = [1, 2]\ngpt2.seed = [1, 2]\n",
                "line 10: sweep.gpt2.seed: given twice",
            ),
            ("[sweep]\n\"gpt2 seed\" = [1, 2]\n", "\"gpt2 seed=1\": allowed: KEY=VALUE, as in train.seed=7"),
            (
                "[sweep]\ngpt2.sead = [1, 2]\n",
                "gpt2.sead: unknown key; did you mean \"seed\"? (from [sweep] gpt2.sead=1)",
            ),
            (
                "[sweep]\ngpt2.seed = [1, -2]\n",
                "gpt2.seed: got -2; allowed: 0 to 9223372036854775807 (from [sweep] gpt2.seed=-2)",
            ),
            (
                "[sweep]\n\"sweep.gpt2.seed\" = [1, 2]\n",
                "line 10: sweep.sweep.gpt2.seed: a sweep has no values",
            ),
            ("sweep = 3\n", "line 9: gpt2.sweep: unknown key"),
        ] {
            let problems = sweep(section).unwrap_err();
            assert!(problems.len() == 1 && problems[0].starts_with(problem), "{section}: {problems:?}");
        }
        // One job is wanted where its file makes several.
        let text = format!("{JOB}[sweep]\ngpt2.seed = [1, 2]\n");
        let problem = crate::job::parse_job_request(&text, &[]).unwrap_err().to_string();
        assert!(problem.starts_with("line 9: sweep: makes several jobs"), "{problem}");
    }

    #[test]
    fn rounds_double_their_steps_and_halve_their_jobs() {
        let jobs = |points: u32, more: &str| {
            let section = format!("{more}[sweep]\ngpt2.seed = \"1..{points}\"\n");
            sweep(&section).unwrap().points.into_iter().map(|point| point.request.spec).collect::<Vec<_>>()
        };
        let rungs_of = |jobs: &[JobSpec], done| {
            let found = rungs(&jobs.iter().collect::<Vec<_>>(), done);
            found.map(|rungs| rungs.iter().map(|rung| (rung.step, rung.keep)).collect::<Vec<_>>())
        };
        assert_eq!(rungs_of(&jobs(8, ""), 0).unwrap(), [(130, 4), (250, 2), (500, 1)]);
        assert_eq!(rungs_of(&jobs(8, ""), 200).unwrap(), [(300, 4), (400, 2), (600, 1)]);
        assert_eq!(rungs_of(&jobs(5, ""), 0).unwrap(), [(250, 3), (500, 2)]);
        assert_eq!(rungs_of(&jobs(2, ""), 0).unwrap(), [(500, 1)]);
        // Rounds that end with the same validation are one.
        let rare = |interval| {
            let mut jobs = jobs(8, "");
            for job in &mut jobs {
                let crate::job::Work::Gpt2Finetune(work) = &mut job.work else { panic!("another kind") };
                work.eval_interval = interval;
            }
            rungs_of(&jobs, 0)
        };
        assert_eq!(rare(300).unwrap(), [(300, 2), (600, 1)]);
        assert!(rare(0).unwrap_err().to_string().contains("validation loss"));
        assert!(rare(1000).unwrap_err().to_string().contains("early enough"));
        let mut others = jobs(2, "");
        let crate::job::Work::Gpt2Finetune(work) = &mut others[0].work else { panic!("another kind") };
        work.max_iters = 999;
        assert!(rungs_of(&others, 0).unwrap_err().to_string().contains("the same of all"));
    }
}
