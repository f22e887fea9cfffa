//! A job's prompts: those without a caption encoded once, the others for each sample.

use std::{borrow::Cow, sync::Arc};

use ringtune_shared::templates::{NAME_MARKS, Template};

use super::{
    ClipTokenizer, Error, Placeholders,
    caption_words::{CaptionDraw, CaptionOptions, shuffled_tags, with_tags_in},
};

/// The token ids of every template of a concept, with the learned tokens in their places.
#[derive(Clone, Debug)]
pub struct Prompts {
    templates: Vec<Prompt>,
    captions: Captions,
}

/// One template.
#[derive(Clone, Debug)]
enum Prompt {
    /// Encoded, [length].
    Ready(Vec<i64>),
    /// To be filled in with a sample's caption.
    Captioned(Template),
}

/// A picture's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caption {
    /// The picture's file, for messages.
    pub file: String,
    /// Empty: it has none.
    pub text: String,
}

/// The words of one concept.
#[derive(Clone, Debug)]
pub struct ConceptWords<'a> {
    /// The tokenizer, with all concepts' placeholders.
    pub tokenizer: &'a Arc<ClipTokenizer>,
    /// The concept's own.
    pub placeholders: &'a Placeholders,
    /// Placeholders of all other concepts.
    pub others: &'a [Placeholders],
}

#[derive(Clone, Debug)]
struct Captions {
    tokenizer: Arc<ClipTokenizer>,
    placeholders: Placeholders,
    /// The concept's text in a prompt.
    name: String,
    /// Of each picture, in their order.
    all: Vec<Caption>,
    options: CaptionOptions,
}

impl Prompts {
    /// Fills and encodes `templates` (at least one) for one concept. Use [`Prompts::with_captions`] too where a
    /// template asks for captions.
    ///
    /// # Errors
    /// A text that is no template; one in which the learned tokens do not appear exactly once, because they are cut
    /// off at the end, or because the token's text is a part of the template's other words; one with another
    /// concept's token in it.
    pub fn encode<T: AsRef<str>>(words: &ConceptWords<'_>, templates: &[T]) -> Result<Self, Error> {
        let name = words.placeholders.text();
        let prompt = |template: &T| {
            let text = template.as_ref();
            let refuse = |problem: String| Error::Template { template: text.to_string(), problem };
            let template = Template::parse(text).map_err(|allowed| refuse(format!("allowed: {allowed}")))?;
            let filled = template.fill(&name, "");
            let ids = words.tokenizer.encode(&filled)?;
            if let Some(problem) = words.problem(&ids, usize::from(template.has_name())) {
                return Err(refuse(problem));
            }
            Ok(if template.has_caption() { Prompt::Captioned(template) } else { Prompt::Ready(ids) })
        };
        let templates = templates.iter().map(prompt).collect::<Result<_, _>>()?;
        let captions = Captions {
            tokenizer: Arc::clone(words.tokenizer),
            placeholders: words.placeholders.clone(),
            name,
            all: Vec::new(),
            options: CaptionOptions::default(),
        };
        Ok(Self { templates, captions })
    }

    /// Adds the pictures' captions, in the order of the pictures, and checks that no prompt loses the learned token.
    ///
    /// # Errors
    /// A prompt in which the token does not appear, or (in some order of the caption's tags) would be cut off, because
    /// it stands behind what a prompt holds: names the picture.
    pub fn with_captions(
        mut self,
        words: &ConceptWords<'_>,
        captions: Vec<Caption>,
        options: CaptionOptions,
    ) -> Result<Self, Error> {
        self.captions.options = options;
        self.captions.all = captions.into_iter().map(|caption| self.captions.expanded(caption)).collect();
        for template in &self.templates {
            let Prompt::Captioned(template) = template else { continue };
            for caption in &self.captions.all {
                let problem = self.captions.problem(words, template, &caption.text)?;
                if let Some(problem) = problem {
                    return Err(Error::Caption { file: caption.file.clone(), problem });
                }
            }
        }
        Ok(self)
    }

    /// Number of templates.
    pub fn count(&self) -> usize {
        self.templates.len()
    }

    /// Number of shuffled tags of picture `image`'s caption in each sample.
    pub fn shuffled_tags(&self, image: usize) -> usize {
        let caption = self.captions.all.get(image);
        caption.map_or(0, |caption| shuffled_tags(&caption.text, self.captions.options))
    }

    /// The ids of template `index` (below [`Prompts::count`]) for picture `image` of this concept, [length].
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn ids(&self, index: usize, image: usize, draw: CaptionDraw<'_>) -> Result<Cow<'_, [i64]>, Error> {
        let template = match &self.templates[index] {
            Prompt::Ready(ids) => return Ok(Cow::Borrowed(ids)),
            Prompt::Captioned(template) => template,
        };
        let caption = self.captions.all.get(image).map_or("", |caption| caption.text.as_str());
        let caption = if draw.dropped { "" } else { caption };
        let shuffled = with_tags_in(draw.order, caption, self.captions.options);
        Ok(Cow::Owned(self.captions.tokenizer.encode(&template.fill(&self.captions.name, &shuffled))?))
    }
}

impl ConceptWords<'_> {
    /// The problem of an encoded prompt that should have the concept's tokens `times` times.
    fn problem(&self, ids: &[i64], times: usize) -> Option<String> {
        if let Some(other) = self.others.iter().find(|other| ids.iter().any(|id| other.ids.contains(id))) {
            return Some(format!("it holds {:?}, the token of another concept", other.text()));
        }
        let learned = ids.iter().filter(|id| self.placeholders.ids.contains(id)).count();
        match learned.cmp(&(times * self.placeholders.ids.len())) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Less => Some(format!(
                "the learned token is cut off: a prompt holds {} tokens",
                self.tokenizer.length() - 2
            )),
            std::cmp::Ordering::Greater => {
                Some(format!("its own words contain {:?}", self.placeholders.text()))
            }
        }
    }
}

impl Captions {
    /// A caption that names the concept names all of its tokens.
    fn expanded(&self, caption: Caption) -> Caption {
        let [token, more @ ..] = self.placeholders.tokens.as_slice() else { return caption };
        let is_expanded = more.iter().any(|token| caption.text.contains(token));
        let text = if is_expanded { caption.text } else { caption.text.replace(token, &self.name) };
        Caption { text, ..caption }
    }

    /// The problem of a picture's prompt. Tokens behind what a prompt holds are cut off, which the learned one
    /// may never be: with all tags in their order, nor, where they are shuffled, in any other.
    fn problem(
        &self,
        words: &ConceptWords<'_>,
        template: &Template,
        caption: &str,
    ) -> Result<Option<String>, Error> {
        let prompt = template.fill(&self.name, caption);
        let whole = self.tokenizer.encode_whole(&prompt)?;
        let learned = |ids: &[i64]| ids.iter().filter(|id| self.placeholders.ids.contains(id)).count();
        let (own, room) = (learned(&whole), self.tokenizer.length() - 2);
        if let Some(other) = words.others.iter().find(|other| whole.iter().any(|id| other.ids.contains(id))) {
            return Ok(Some(format!("it holds {:?}, the token of another concept", other.text())));
        }
        if own == 0 || !own.is_multiple_of(self.placeholders.ids.len()) {
            let marks = NAME_MARKS.join(" or ");
            return Ok(Some(format!(
                "the prompt {prompt:?} does not hold the learned token {:?}: put {marks} into the template, or the \
                 token into the caption",
                self.name
            )));
        }
        if whole.len() <= room {
            return Ok(None);
        }
        // The number of tokens before or behind a caption does not depend on the order of its tags: only a token that
        // is among the shuffled ones itself can get behind the end.
        let cut = learned(&whole[..room]) < own;
        let moves = self.options.shuffle_tags && {
            let tags: Vec<&str> = caption.split(',').skip(self.options.keep_tags).collect();
            learned(&self.tokenizer.encode_whole(&tags.join(","))?) > 0
        };
        Ok((cut || moves).then(|| {
            format!(
                "the learned token {:?} {} cut off: the prompt {prompt:?} has {} tokens, of which {room} fit; shorten \
                 the caption, or put the token before it",
                self.name,
                if cut { "is" } else { "may be" },
                whole.len(),
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of<T>(vectors: usize, test: impl FnOnce(&ConceptWords<'_>) -> T) -> T {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/toy-sd/tokenizer");
        let mut tokenizer = ClipTokenizer::open(folder.as_ref(), 77).unwrap();
        let placeholders = tokenizer.add_placeholders("<a>", vectors).unwrap();
        let others = [tokenizer.add_placeholders("<b>", 1).unwrap()];
        test(&ConceptWords { tokenizer: &Arc::new(tokenizer), placeholders: &placeholders, others: &others })
    }

    /// The problem of a prompt, if any.
    fn problem(template: &str, caption: &str, options: CaptionOptions) -> Option<String> {
        words_of(2, |words| {
            let caption = Caption { file: "cat.png".to_owned(), text: caption.to_owned() };
            match Prompts::encode(words, &[template]).unwrap().with_captions(words, vec![caption], options) {
                Ok(_) => None,
                Err(Error::Caption { file, problem }) => Some(problem).filter(|_| file == "cat.png"),
                Err(other) => panic!("{other}"),
            }
        })
    }

    const AS_IT_IS: CaptionOptions = CaptionOptions { shuffle_tags: false, keep_tags: 0 };

    #[test]
    fn a_caption_stands_where_the_template_has_it() {
        words_of(2, |words| {
            let captions = ["a cat, red", "", "<a> on a table"];
            let captions = captions.map(|text| Caption { file: "a.png".to_owned(), text: text.to_owned() });
            let prompts = Prompts::encode(words, &["[name], [caption]!", "a {}"]).unwrap();
            let prompts = prompts.with_captions(words, captions.to_vec(), AS_IT_IS).unwrap();
            let ids = |template, image, dropped| {
                let draw = CaptionDraw { dropped, order: &[] };
                prompts.ids(template, image, draw).unwrap().into_owned()
            };
            let expect = |text: &str| words.tokenizer.encode(text).unwrap();
            assert_eq!(ids(0, 0, false), expect("<a> <a>_1, a cat, red!"));
            assert_eq!(ids(0, 0, true), expect("<a> <a>_1, !"));
            assert_eq!(ids(0, 1, false), expect("<a> <a>_1, !"));
            assert_eq!(ids(0, 2, false), expect("<a> <a>_1, <a> <a>_1 on a table!"));
            assert_eq!(ids(1, 0, false), expect("a <a> <a>_1"));
        });
    }

    #[test]
    fn the_learned_token_is_never_cut_off() {
        let tags = |count: usize| vec!["red"; count].join(", ");
        let shuffled = CaptionOptions { shuffle_tags: true, keep_tags: 1 };
        // 75 tokens: two for the name, two for each further tag.
        assert_eq!(problem("[name] [caption]", &tags(200), shuffled), None);
        assert_eq!(problem("[caption] [name]", &tags(37), shuffled), None);
        for options in [AS_IT_IS, shuffled] {
            let cut = problem("[caption] [name]", &tags(38), options).unwrap();
            assert!(cut.contains("cut off") && cut.contains("77 tokens"), "{cut}");
        }
        // Among the tags themselves: where they change places, every place counts.
        let first = format!("<a>, {}", tags(40));
        assert_eq!(problem("[caption]", &first, AS_IT_IS), None);
        assert_eq!(problem("[caption]", &first, shuffled), None);
        let all = CaptionOptions { keep_tags: 0, ..shuffled };
        assert!(problem("[caption]", &first, all).unwrap().contains("may be"));
        assert_eq!(problem("[caption]", &format!("<a>, {}", tags(36)), all), None);
    }

    #[test]
    fn every_prompt_holds_the_own_token_and_no_other() {
        assert!(problem("[caption]", "a cat", AS_IT_IS).unwrap().contains("does not hold"));
        assert!(problem("[caption]", "", AS_IT_IS).is_some());
        assert_eq!(problem("[caption]", "a cat by <a>", AS_IT_IS), None);
        assert_eq!(problem("[caption]", "a cat by <a> <a>_1", AS_IT_IS), None);
        assert!(problem("[name] [caption]", "a cat by <b>", AS_IT_IS).unwrap().contains("another concept"));
        words_of(1, |words| {
            assert!(matches!(Prompts::encode(words, &["[nmae]"]), Err(Error::Template { .. })));
            assert!(matches!(Prompts::encode(words, &["<b> {} [caption]"]), Err(Error::Template { .. })));
        });
    }
}
