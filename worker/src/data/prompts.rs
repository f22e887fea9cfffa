//! A job's prompts: those without a caption encoded once, the others for each sample.

use std::{borrow::Cow, sync::Arc};

use ringtune_shared::templates::{NAME_MARKS, Template};

use super::{
    ClipTokenizer, DrawnSamples, Error, Placeholders,
    caption_words::{CaptionDraw, CaptionOptions, shuffled_tags, with_tags_in},
};

/// The token ids of every template of a concept, with the learned tokens in their places.
#[derive(Clone, Debug)]
pub struct Prompts {
    templates: Vec<Prompt>,
    captions: Captions,
    /// The files of pictures of which a caption is too long for a prompt.
    cut_off: Vec<String>,
}

/// One template.
#[derive(Clone, Debug)]
enum Prompt {
    /// Encoded, [length].
    Ready(Vec<i64>),
    /// To be filled in with a sample's caption.
    Captioned(Template),
    /// Each picture's own random tokens, so many.
    Drawn(DrawnSamples, usize),
}

/// A picture's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caption {
    /// The picture's file, for messages.
    pub file: String,
    /// One of them stands in a sample's prompt; empty: it has none.
    pub texts: Vec<String>,
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
    /// Fills and encodes `templates` (at least one) for one concept; one without placeholders learns no word, and its prompts have
    /// captions alone, which may be longer than a prompt holds: the end is cut off, as diffusers' scripts do. Use
    /// [`Prompts::with_captions`] too where a template asks for captions.
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
        Ok(Self { templates, captions, cut_off: Vec::new() })
    }

    /// One prompt for all pictures, without a word that is learned.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn of_all(tokenizer: &Arc<ClipTokenizer>, text: &str) -> Result<Self, Error> {
        let words = ConceptWords { tokenizer, placeholders: &Placeholders::default(), others: &[] };
        let ready = Prompt::Ready(tokenizer.encode(text)?);
        Ok(Self { templates: vec![ready], ..Self::encode(&words, &[] as &[&str])? })
    }

    /// Random tokens for each of these samples.
    ///
    /// # Errors
    /// None that a tokenizer would have said nothing of before.
    pub fn drawn(tokenizer: &Arc<ClipTokenizer>, samples: DrawnSamples) -> Result<Self, Error> {
        let words = ConceptWords { tokenizer, placeholders: &Placeholders::default(), others: &[] };
        let drawn = Prompt::Drawn(samples, tokenizer.length());
        Ok(Self { templates: vec![drawn], ..Self::encode(&words, &[] as &[&str])? })
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
        let templates: Vec<&Template> = self.templates.iter().filter_map(Prompt::captioned).collect();
        for caption in &self.captions.all {
            let nothing = caption.texts.is_empty().then_some("");
            let mut is_cut = false;
            for text in caption.texts.iter().map(String::as_str).chain(nothing) {
                for template in &templates {
                    let prompt = template.fill(&self.captions.name, text);
                    let whole = words.tokenizer.encode_whole(&prompt)?;
                    is_cut |= whole.len() > words.tokenizer.room();
                    if let Some(problem) = self.captions.problem(words, (&prompt, &whole), text)? {
                        return Err(Error::Caption { file: caption.file.clone(), problem });
                    }
                }
            }
            self.cut_off.extend(is_cut.then(|| caption.file.clone()));
        }
        Ok(self)
    }

    /// The files of pictures that have a caption that is too long for a prompt: its end is cut off.
    pub fn cut_off(&self) -> &[String] {
        &self.cut_off
    }

    /// Number of templates.
    pub fn count(&self) -> usize {
        self.templates.len()
    }

    /// Number of captions of picture `image`.
    pub fn captions(&self, image: usize) -> usize {
        self.captions.all.get(image).map_or(0, |caption| caption.texts.len())
    }

    /// Number of shuffled tags of caption `choice` of picture `image`.
    pub fn shuffled_tags(&self, image: usize, choice: usize) -> usize {
        shuffled_tags(self.captions.text(image, choice), self.captions.options)
    }

    /// The ids of template `index` (below [`Prompts::count`]) for picture `image` of this concept, [length].
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn ids(&self, index: usize, image: usize, draw: CaptionDraw<'_>) -> Result<Cow<'_, [i64]>, Error> {
        let template = match &self.templates[index] {
            Prompt::Ready(ids) => return Ok(Cow::Borrowed(ids)),
            Prompt::Drawn(samples, length) => return Ok(Cow::Owned(samples.tokens(image, *length))),
            Prompt::Captioned(template) => template,
        };
        let caption = if draw.dropped { "" } else { self.captions.text(image, draw.choice) };
        let shuffled = with_tags_in(draw.order, caption, self.captions.options);
        Ok(Cow::Owned(self.captions.tokenizer.encode(&template.fill(&self.captions.name, &shuffled))?))
    }
}

impl Prompt {
    /// What a caption is filled into.
    fn captioned(&self) -> Option<&Template> {
        match self {
            Self::Captioned(template) => Some(template),
            Self::Ready(_) | Self::Drawn(..) => None,
        }
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
            std::cmp::Ordering::Less => {
                Some(format!("the learned token is cut off: a prompt holds {} tokens", self.tokenizer.room()))
            }
            std::cmp::Ordering::Greater => {
                Some(format!("its own words contain {:?}", self.placeholders.text()))
            }
        }
    }
}

impl Captions {
    /// A caption of a picture; empty where it has none.
    fn text(&self, image: usize, choice: usize) -> &str {
        self.all.get(image).and_then(|caption| caption.texts.get(choice)).map_or("", String::as_str)
    }

    /// A caption that names the concept names all of its tokens.
    fn expanded(&self, mut caption: Caption) -> Caption {
        let [token, more @ ..] = self.placeholders.tokens.as_slice() else { return caption };
        for text in &mut caption.texts {
            if !more.iter().any(|token| text.contains(token)) {
                *text = text.replace(token, &self.name);
            }
        }
        caption
    }

    /// The problem of a picture's prompt, a text and all of its tokens. Tokens behind what a prompt holds are cut off, which
    /// the learned one may never be: with all tags in their order, nor, where they are shuffled, in any other.
    fn problem(
        &self,
        words: &ConceptWords<'_>,
        (prompt, whole): (&str, &[i64]),
        caption: &str,
    ) -> Result<Option<String>, Error> {
        if self.placeholders.ids.is_empty() {
            let problem = "it has no caption: write one into the folder's metadata file, or into a .txt or .caption file \
                           beside it";
            return Ok(caption.is_empty().then(|| problem.to_owned()));
        }
        let learned = |ids: &[i64]| ids.iter().filter(|id| self.placeholders.ids.contains(id)).count();
        let (own, room) = (learned(whole), self.tokenizer.room());
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
            let caption = Caption { file: "cat.png".to_owned(), texts: vec![caption.to_owned()] };
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
            let captions: [&[&str]; 3] = [&["a cat, red", "a toy"], &[], &["<a> on a table"]];
            let captions = captions.map(|texts| Caption {
                file: "a.png".to_owned(),
                texts: texts.iter().map(|&text| text.to_owned()).collect(),
            });
            let prompts = Prompts::encode(words, &["[name], [caption]!", "a {}"]).unwrap();
            let prompts = prompts.with_captions(words, captions.to_vec(), AS_IT_IS).unwrap();
            assert_eq!([0, 1, 2].map(|image| prompts.captions(image)), [2, 0, 1]);
            let second = CaptionDraw { choice: 1, ..CaptionDraw::default() };
            let second = prompts.ids(0, 0, second).unwrap().into_owned();
            assert_eq!(second, words.tokenizer.encode("<a> <a>_1, a toy!").unwrap());
            let ids = |template, image, dropped| {
                let draw = CaptionDraw { dropped, ..CaptionDraw::default() };
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
    fn captions_whose_end_is_cut_off_are_named() {
        words_of(1, |words| {
            let captions = [75, 76].map(|count| Caption {
                file: format!("{count}.png"),
                texts: vec!["star".to_owned(), vec!["star"; count].join(" ")],
            });
            let learns_none = ConceptWords {
                placeholders: &Placeholders::default(),
                tokenizer: words.tokenizer,
                others: &[],
            };
            for (words, template, expected) in [
                (&learns_none, "[caption]", &["76.png"][..]),
                (words, "[name] [caption]", &["75.png", "76.png"]),
            ] {
                let prompts = Prompts::encode(words, &[template]).unwrap();
                let prompts = prompts.with_captions(words, captions.to_vec(), AS_IT_IS).unwrap();
                assert_eq!(prompts.cut_off(), expected, "{template}");
            }
        });
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
