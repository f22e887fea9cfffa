//! `[queue]`.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use crate::job::{
    QueueDraft,
    reader::{Reader, Section, line_of},
};

/// Its keys.
pub(super) const KEYS: &[&str] =
    &["owner", "priority", "labels", "deadline", "max_seconds", "worker_retries", "error_retries"];

impl Reader<'_> {
    pub(super) fn queue(&mut self, section: &mut Section<'_>) -> QueueDraft {
        QueueDraft {
            owner: self.string(section, "owner"),
            priority: self.integer(section, "priority"),
            labels: self.labels(section).unwrap_or_default(),
            deadline: self.string(section, "deadline"),
            max_seconds: self.integer(section, "max_seconds"),
            worker_retries: self.integer(section, "worker_retries"),
            error_retries: self.integer(section, "error_retries"),
        }
    }

    fn labels(&mut self, section: &mut Section<'_>) -> Option<BTreeMap<String, String>> {
        let value = self.take(section, "labels")?;
        let wanted = "a table such as { project = \"dicoo\" }";
        let table = self.expect("queue.labels", value, wanted, value.get_ref().as_table())?;
        let mut labels = BTreeMap::new();
        for (key, value) in table.iter() {
            let key: &str = key.get_ref().borrow();
            let field = format!("queue.labels.{key}");
            self.lines.insert(field.clone(), line_of(self.text, value.span()));
            if let Some(text) = self.expect(&field, value, "a text in quotes", value.get_ref().as_str()) {
                labels.insert(key.to_owned(), text.to_owned());
            }
        }
        Some(labels)
    }
}
