//! A job's prompts, encoded once.

use super::{ClipTokenizer, Error, Placeholders, templates};

/// The token ids of every template of a job, with the learned tokens in their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompts {
    /// [templates][length]
    ids: Vec<Vec<i64>>,
}

impl Prompts {
    /// Fills and encodes `templates` (at least one, each with at least one `{}`) for one concept; `others`: the
    /// concepts whose pictures these prompts do not describe.
    ///
    /// # Errors
    /// A template in which the learned tokens do not appear exactly as often as its `{}`, because they are cut off
    /// at the end, or because the token's text is a part of the template's other words; one with another concept's
    /// token in it.
    pub fn encode<T: AsRef<str>>(
        tokenizer: &ClipTokenizer,
        placeholders: &Placeholders,
        others: &[Placeholders],
        templates: &[T],
    ) -> Result<Self, Error> {
        let text = placeholders.text();
        let encode = |template: &T| {
            let template = template.as_ref();
            let ids = tokenizer.encode(&templates::fill(template, &text))?;
            let learned = ids.iter().filter(|id| placeholders.ids.contains(id)).count();
            let expected = template.matches(templates::MARK).count() * placeholders.ids.len();
            let other = others.iter().find(|other| ids.iter().any(|id| other.ids.contains(id)));
            if let Some(other) = other {
                let problem = format!("it holds {:?}, the token of another concept", other.text());
                return Err(Error::Template { template: template.to_string(), problem });
            }
            let problem = match learned.cmp(&expected) {
                std::cmp::Ordering::Equal if expected > 0 => return Ok(ids),
                std::cmp::Ordering::Equal => format!("it has no {} for the learned token", templates::MARK),
                std::cmp::Ordering::Less => {
                    format!("the learned token is cut off: a prompt holds {} tokens", tokenizer.length() - 2)
                }
                std::cmp::Ordering::Greater => format!("its own words contain {text:?}"),
            };
            Err(Error::Template { template: template.to_string(), problem })
        };
        Ok(Self { ids: templates.iter().map(encode).collect::<Result<_, _>>()? })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// The ids of template `index` (below [`Prompts::count`]), [length].
    pub fn ids(&self, index: usize) -> &[i64] {
        &self.ids[index]
    }
}
