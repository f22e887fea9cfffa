//! Job files, from one that works to those that should not.

use std::path::Path;

use anyhow::{Context as _, Result};
use toml::{Table, Value};

use crate::places;

/// A job file in the making.
#[derive(Debug, Clone)]
pub struct Job(Table);

impl Job {
    /// A short job on the toy checkpoint: the concept "green star", one rank, one thread, fp32.
    pub fn toy() -> Result<Self> {
        Ok(Self(toml::from_str(
            r#"
            kind = "textual_inversion"
            name = "toy"
            [model]
            [data]
            [train]
            placeholder_token = "<green-star>"
            initializer_token = "star"
            templates = ["a photo of a {}", "a rendering of a {}", "a picture of a {}"]
            resolution = 64
            train_batch_size = 2
            max_train_steps = 3
            learning_rate = 0.02
            lr_scheduler = "constant"
            lr_warmup_steps = 0
            seed = 7
            [cluster]
            world_size = 1
            threads_per_rank = 1
            "#,
        )?))
        .map(|job| job.set("model.base", text(&places::toy_checkpoint())))
        .map(|job| job.set("data.images", text(&places::green_star())))
    }

    /// A job that makes texts with a model, on ranks of one thread each; it has no prompts yet.
    pub fn texts(model: &Path) -> Result<Self> {
        let job: Table = toml::from_str(
            r#"
            kind = "generate_text"
            name = "words"
            [model]
            [generate_text]
            temperature = 1.5
            stop_at_end_of_text = false
            [cluster]
            threads_per_rank = 1
            "#,
        )?;
        Ok(Self(job).set("model.base", text(model)))
    }

    /// A job of a table.
    pub fn of(table: Table) -> Self {
        Self(table)
    }

    /// Sets a key, as in "train.num_vectors".
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        let (table, key) = match key.split_once('.') {
            Some((section, key)) => {
                let section = self.0.entry(section).or_insert_with(|| Value::Table(Table::new()));
                match section.as_table_mut() {
                    Some(table) => (table, key),
                    None => return self,
                }
            }
            None => (&mut self.0, key),
        };
        table.insert(key.to_owned(), value.into());
        self
    }

    /// So many workers share it, and one of them can do it alone.
    pub fn shared_by(self, workers: i64) -> Self {
        self.set("cluster.world_size", workers).set("cluster.min_world_size", 1)
    }

    /// Without one key, as in "data.images".
    pub fn without(mut self, key: &str) -> Self {
        if let Some((section, key)) = key.split_once('.')
            && let Some(table) = self.0.get_mut(section).and_then(Value::as_table_mut)
        {
            table.remove(key);
        }
        self
    }

    /// Writes the job file.
    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, toml::to_string(&self.0)?).with_context(|| format!("write {}", path.display()))
    }
}

/// A path as text.
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
