//! Reads a command line by the tables of its script.

use std::collections::BTreeMap;

use ringtune_shared::{job::HubModel, suggest};

use super::{
    super::{List, Translated, Untranslatable},
    Becomes, Row, Script, Takes, each,
};

/// A key of the job: its section, "" for none, and its name.
pub(in crate::diffusers_arguments) type Place = (&'static str, &'static str);

/// What was read of a command line.
pub(in crate::diffusers_arguments) struct Reader {
    script: &'static Script,
    pub(in crate::diffusers_arguments) list: List,
    /// The options in their order, each once: the last one counts, as for argparse.
    given: Vec<(Row, Vec<String>)>,
    /// In TOML.
    values: BTreeMap<Place, String>,
    output_dir: Option<String>,
    remarks: Vec<String>,
    problems: Vec<String>,
    /// The keys that these are about.
    unknown: Vec<String>,
}

impl Reader {
    pub(in crate::diffusers_arguments) fn new(script: &'static Script, list: List) -> Self {
        Self {
            script,
            list,
            given: Vec::new(),
            values: BTreeMap::new(),
            output_dir: None,
            remarks: Vec::new(),
            problems: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Of a launcher only the number of processes and the precision matter.
    pub(in crate::diffusers_arguments) fn launcher(&mut self, words: &[String]) {
        let value_of = |names: &[&str]| {
            words.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
                Some((name, value)) if names.contains(&name) => Some(value.to_owned()),
                None if names.contains(&word.as_str()) => words.get(at + 1).cloned(),
                _ => None,
            })
        };
        const PROCESSES: Row = ("num_processes", Takes::Number, Becomes::Key("cluster", "world_size"));
        const PRECISION: Row = ("mixed_precision", Takes::Text, Becomes::Key("train", "mixed_precision"));
        for (row, names) in [
            (PROCESSES, &["--num_processes", "--num-processes", "-n", "-np"][..]),
            (PRECISION, &["--mixed_precision", "--mixed-precision"]),
        ] {
            if let Some(value) = value_of(names) {
                self.option(&format!("--{}", row.0), &row, &[value]);
            }
        }
    }

    /// Takes the options of `words` down, without looking into their values.
    pub(in crate::diffusers_arguments) fn options(&mut self, mut words: &[String]) {
        while let [word, rest @ ..] = words {
            words = rest;
            let Some(option) = word.strip_prefix("--") else {
                self.problems.push(format!("{word:?} is not an option: options begin with --"));
                continue;
            };
            let (name, inline) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            // argparse takes both.
            let name = name.replace('-', "_");
            let Some(row) = self.script.rows().find(|row| row.0 == name) else {
                self.unknown_option("--", &name, self.script.rows());
                continue;
            };
            let own = rest.iter().take_while(|word| !word.starts_with("--")).count();
            let count = match (row.1, &inline) {
                (_, Some(_)) | (Takes::Nothing, None) => 0,
                (Takes::Text | Takes::Number, None) => own.min(1),
                (Takes::Words, None) => own,
            };
            let values: Vec<String> = inline.iter().chain(&rest[..count]).cloned().collect();
            words = &rest[count..];
            match (row.1, values.as_slice()) {
                (Takes::Nothing, [value, ..]) => {
                    self.problems.push(format!("--{name} takes no value, and was given {value:?}"));
                }
                (Takes::Text | Takes::Number, []) => {
                    self.refuse(&key_of(&row), format!("--{name} needs a value"))
                }
                _ => {
                    self.given.retain(|(earlier, _)| earlier.0 != row.0);
                    self.given.push((row, values));
                }
            }
        }
    }

    /// What the options mean, each by itself and then together.
    pub(in crate::diffusers_arguments) fn finish(mut self) -> Result<Translated, Untranslatable> {
        // 1. Each by itself.
        for (row, words) in self.given.clone() {
            self.option(&format!("--{}", row.0), &row, &words);
        }
        // 2. Together, and what the script does without them.
        (self.script.finish)(&mut self);
        for (section, key, toml) in self.script.defaults {
            self.set_default((section, key), toml);
        }
        for (option, what) in self.script.without {
            if !self.is_given(option) {
                self.remark(format!("{}: {what}", self.script.name));
            }
        }
        // 3. The job.
        let mut job = format!("kind = \"{}\"\n", self.script.kind);
        for section in ["", "model", "data", "train", "lora", "cluster"] {
            let values = self.values.iter().filter(|((of, _), _)| *of == section);
            let lines: String = values.map(|((_, key), value)| format!("{key} = {value}\n")).collect();
            if !lines.is_empty() && !section.is_empty() {
                job.push_str(&format!("[{section}]\n"));
            }
            job.push_str(&lines);
        }
        match self.problems.is_empty() {
            true => Ok(Translated { job, output_dir: self.output_dir, remarks: self.remarks }),
            false => Err(Untranslatable {
                script: self.script.name,
                problems: self.problems,
                rest: job,
                unknown: self.unknown,
            }),
        }
    }

    /// One option, which is shown as `shown`.
    pub(in crate::diffusers_arguments) fn option(&mut self, shown: &str, row: &Row, words: &[String]) {
        let (_, takes, becomes) = row;
        let first = words.first().map_or("", String::as_str);
        match becomes {
            Becomes::LeftOut(why) => return self.remark(format!("{shown} is left out: {why}")),
            Becomes::Refused(instead) => return self.refuse("", format!("{shown}: {instead}")),
            Becomes::Only(values, instead) => {
                if !values.iter().any(|value| is_same(first, value)) {
                    let allowed = values.join(", ");
                    self.refuse("", format!("{shown}: got {first:?}; allowed: {allowed}: {instead}"));
                }
                return;
            }
            Becomes::Key(..) | Becomes::KeyBeside(..) | Becomes::Sets(..) => {}
            Becomes::By(..) | Becomes::Noted(_) => {}
        }
        if let Some(word) = words.iter().find(|word| word.contains('$')) {
            let problem = format!(
                "{shown}: {word:?} has a variable in it, which only a shell fills in; write its value, or put the \
                 command line between double quotes"
            );
            return self.refuse(&key_of(row), problem);
        }
        let toml = match takes {
            Takes::Nothing => Some("true".to_owned()),
            Takes::Text | Takes::Words => Some(quoted(first)),
            Takes::Number => number(first),
        };
        let Some(toml) = toml else {
            return self.refuse(&key_of(row), format!("{shown}: {first:?} is not a number"));
        };
        match becomes {
            Becomes::Key(section, key) => self.set((section, key), toml),
            Becomes::KeyBeside(section, key, other) if self.is_given(other) => {
                self.set((section, key), toml);
            }
            Becomes::KeyBeside(_, _, other) => {
                self.remark(format!("{shown} is left out: it has no effect without --{other}"));
            }
            Becomes::Sets(section, key, toml) => self.set((section, key), (*toml).to_owned()),
            Becomes::By(_, read) => read(self, shown, words),
            Becomes::Noted(_) | Becomes::LeftOut(_) | Becomes::Only(..) | Becomes::Refused(_) => {}
        }
    }

    /// Options in the words of one, as in `conv_dim=8`, by a table of their own.
    pub(in crate::diffusers_arguments) fn pairs(
        &mut self,
        shown: &str,
        rows: &'static [Row],
        words: &[String],
    ) {
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match each(rows).find(|row| row.0 == name) {
                Some(row) => self.option(&format!("{shown} {name}"), &row, &[value.to_owned()]),
                None => self.unknown_option(&format!("{shown} "), name, each(rows)),
            }
        }
    }

    fn unknown_option(&mut self, before: &str, name: &str, rows: impl Iterator<Item = Row>) {
        let near = suggest::nearest(name, rows.map(|row| row.0));
        let meant = near.map_or(String::new(), |near| format!("; did you mean {before}{near}?"));
        self.problems.push(format!("{before}{name} is not an option of {}{meant}", self.script.name));
    }
}

/// For functions that read options.
impl Reader {
    /// The words of an option that was given.
    pub(in crate::diffusers_arguments) fn words(&self, option: &str) -> Option<&[String]> {
        self.given.iter().find(|(row, _)| row.0 == option).map(|(_, words)| words.as_slice())
    }

    /// The only word of one.
    pub(in crate::diffusers_arguments) fn text(&self, option: &str) -> Option<&str> {
        self.words(option)?.first().map(String::as_str)
    }

    pub(in crate::diffusers_arguments) fn is_given(&self, option: &str) -> bool {
        self.words(option).is_some()
    }

    pub(in crate::diffusers_arguments) fn has(&self, place: Place) -> bool {
        self.values.contains_key(&place)
    }

    /// The value of a key, in TOML.
    pub(in crate::diffusers_arguments) fn value(&self, place: Place) -> Option<&str> {
        self.values.get(&place).map(String::as_str)
    }

    pub(in crate::diffusers_arguments) fn set(&mut self, place: Place, toml: String) {
        self.values.insert(place, toml);
    }

    pub(in crate::diffusers_arguments) fn set_default(&mut self, place: Place, toml: &str) {
        self.values.entry(place).or_insert_with(|| toml.to_owned());
    }

    pub(in crate::diffusers_arguments) fn take_back(&mut self, place: Place) -> bool {
        self.values.remove(&place).is_some()
    }

    pub(in crate::diffusers_arguments) fn remark(&mut self, remark: String) {
        self.remarks.push(remark);
    }

    /// `key`: of the job, which is not known for this reason; or empty.
    pub(in crate::diffusers_arguments) fn refuse(&mut self, key: &str, problem: String) {
        self.unknown.extend((!key.is_empty()).then(|| key.to_owned()));
        self.problems.push(problem);
    }
}

/// The script takes a repository's name where no folder is.
pub(in crate::diffusers_arguments) fn base(reader: &mut Reader, _: &str, words: &[String]) {
    for word in words {
        let is_repository = HubModel::is_repository(word) && (reader.list)(word).is_none();
        let base = if is_repository { format!("hf://{word}") } else { word.clone() };
        reader.set(("model", "base"), quoted(&base));
    }
}

/// A set of the hub, unless there is a folder of that name.
pub(in crate::diffusers_arguments) fn dataset(reader: &mut Reader, _: &str, words: &[String]) {
    for word in words {
        let is_repository = HubModel::is_repository(word) && (reader.list)(word).is_none();
        let source = if is_repository { format!("hf://datasets/{word}") } else { word.clone() };
        reader.set(("data", "source"), quoted(&source));
    }
}

pub(in crate::diffusers_arguments) fn output_dir(reader: &mut Reader, _: &str, words: &[String]) {
    reader.output_dir = words.first().cloned();
}

/// The other trackers are services to log in to; they change nothing about the result.
pub(in crate::diffusers_arguments) fn report_to(reader: &mut Reader, shown: &str, words: &[String]) {
    let place = ("train", "report_to");
    for word in words {
        match word.as_str() {
            "tensorboard" | "none" => reader.set(place, quoted(word)),
            other => {
                reader.set(place, quoted("tensorboard"));
                reader.remark(format!(
                    "{shown} is left out: there is no {other} here; the job leaves TensorBoard's events"
                ));
            }
        }
    }
}

/// The job's key that an option stands for; empty: none.
fn key_of(row: &Row) -> String {
    match row.2 {
        Becomes::Key(section, key) | Becomes::KeyBeside(section, key, _) | Becomes::Sets(section, key, _) => {
            format!("{section}.{key}")
        }
        Becomes::By(key, _) | Becomes::Noted(key) => key.to_owned(),
        Becomes::LeftOut(_) | Becomes::Only(..) | Becomes::Refused(_) => String::new(),
    }
}

/// The number as TOML has it; whether it is allowed is the job's to say.
pub(in crate::diffusers_arguments) fn number(text: &str) -> Option<String> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.to_string());
    }
    text.parse::<f64>().ok().filter(|value| value.is_finite()).map(|value| format!("{value:?}"))
}

/// The text as TOML has it.
pub(in crate::diffusers_arguments) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Whether two values mean the same: 0 and 0.0 do.
fn is_same(left: &str, right: &str) -> bool {
    let numbers = (left.parse::<f64>(), right.parse::<f64>());
    left == right || matches!(numbers, (Ok(left), Ok(right)) if left == right)
}
