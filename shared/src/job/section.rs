//! Sections of a job. An option is declared once, with [`section!`]: what it means, its type, how a job file says it, its
//! default and its limits. The spec that is stored, the draft that comes before it, the reader of job files, the keys for
//! "did you mean" and "belongs to", the checks, and the conversions of the wire all follow from that.

use std::collections::BTreeMap;

use super::{check::Check, reader::Keys};

/// A section of a job, or a part of one, with every default filled in and every value checked.
pub(super) trait Spec: Sized {
    /// It before that.
    type Draft: Keys;

    /// Fills in the defaults and checks every value by itself. `section`: its name in messages.
    fn checked(draft: Self::Draft, check: &mut Check, section: &str) -> Self;

    /// The draft that becomes this.
    fn draft(&self) -> Self::Draft;
}

/// The value of an option, as a draft has it.
pub(super) trait Value<Draft> {
    /// None: it is not given.
    fn draft(&self) -> Draft;
}

impl<S: Spec> Value<S::Draft> for S {
    fn draft(&self) -> S::Draft {
        Spec::draft(self)
    }
}

impl<S: Spec> Value<Option<Vec<S::Draft>>> for Vec<S> {
    fn draft(&self) -> Option<Vec<S::Draft>> {
        (!self.is_empty()).then(|| self.iter().map(Spec::draft).collect())
    }
}

impl<Draft, T: Value<Option<Draft>>> Value<Option<Draft>> for Option<T> {
    fn draft(&self) -> Option<Draft> {
        self.as_ref().and_then(Value::draft)
    }
}

macro_rules! value {
    ($($type:ty => $draft:ty: |$value:ident| $given:expr;)+) => {
        $(impl $crate::job::section::Value<Option<$draft>> for $type {
            fn draft(&self) -> Option<$draft> {
                let $value = self;
                Some($given)
            }
        })+
    };
}

pub(super) use value;

value! {
    // A checked spec's numbers came from `i64` and fit again.
    u32 => i64: |number| i64::from(*number);
    u64 => i64: |number| i64::try_from(*number).unwrap_or(i64::MAX);
    f64 => f64: |number| *number;
    bool => bool: |flag| *flag;
    String => String: |text| text.clone();
    Vec<String> => Vec<String>: |texts| texts.clone();
    BTreeMap<String, f64> => BTreeMap<String, f64>: |numbers| numbers.clone();
}

/// Declares a section: its spec, its draft, and a macro with its keys for the wire.
///
/// An option is `key: type = read.check(…)`. `read` is the method of [`super::reader::Reader`] that reads it, and says what a
/// draft has; `check` is the method of [`Check`] that is given the field's name, what the draft has, and what stands in the
/// parentheses: mostly the default and what is allowed. There the draft goes by the name that stands after `from`, and each
/// earlier option by its own, as it was checked. `part<Draft>` stands for all options of another section.
macro_rules! section {
    (
        $(#[$doc:meta])*
        $spec:ident from $given:ident: $draft:ident, $keys:ident {
            $(
                $(#[$meta:meta])*
                $key:ident: $type:ty = $read:ident$(<$of:ty>)? $(.$check:ident($($argument:expr),* $(,)?))?,
            )+
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        pub struct $spec {
            $($(#[$meta])* pub $key: $type,)+
        }

        #[doc = concat!("[`", stringify!($spec), "`], unchecked: none is what is not given.")]
        #[derive(Debug, Clone, Default, PartialEq)]
        #[expect(missing_docs, reason = "documented in the spec that it becomes")]
        pub struct $draft {
            $(pub $key: $crate::job::section::section!(@draft $read$(<$of>)?),)+
        }

        impl $crate::job::reader::Keys for $draft {
            fn read(
                reader: &mut $crate::job::reader::Reader<'_>,
                section: &mut $crate::job::reader::Section<'_>,
            ) -> Self {
                Self { $($key: $crate::job::section::section!(@read $read reader section $key),)+ }
            }

            fn given(&self) -> Vec<&'static str> {
                let mut given = Vec::new();
                $(if self.$key != Default::default() { given.push(stringify!($key)); })+
                given
            }
        }

        impl $crate::job::section::Spec for $spec {
            type Draft = $draft;

            fn checked($given: $draft, check: &mut $crate::job::check::Check, section: &str) -> Self {
                $(
                    let $key = $crate::job::section::section!(
                        @check check section ($given.$key) $key $read $(.$check($($argument),*))?
                    );
                )+
                Self { $($key,)+ }
            }

            fn draft(&self) -> $draft {
                $draft { $($key: $crate::job::section::Value::draft(&self.$key),)+ }
            }
        }

        $crate::job::section::section!(@keys ($) $keys $($key $read)+);
    };
    (@draft part<$draft:ty>) => { $draft };
    (@draft tables<$draft:ty>) => { Option<Vec<$draft>> };
    (@draft integer) => { Option<i64> };
    (@draft number) => { Option<f64> };
    (@draft boolean) => { Option<bool> };
    (@draft string) => { Option<String> };
    (@draft text_or_integer) => { Option<String> };
    (@draft strings) => { Option<Vec<String>> };
    (@draft numbers) => { Option<::std::collections::BTreeMap<String, f64>> };
    (@draft text_or_strings) => { Option<Vec<String>> };
    (@read part $reader:ident $section:ident $key:ident) => {
        $crate::job::reader::Keys::read($reader, $section)
    };
    (@read $read:ident $reader:ident $section:ident $key:ident) => {
        $reader.$read($section, stringify!($key))
    };
    (@check $check:ident $section:ident ($given:expr) $key:ident part) => {
        $crate::job::section::Spec::checked($given, $check, $section)
    };
    (@check $check:ident $section:ident ($given:expr) $key:ident $read:ident .$how:ident($($argument:expr),*)) => {
        $check.$how(&format!("{}.{}", $section, stringify!($key)), $given, $($argument),*)
    };
    // Another crate's macro is given what stands in the parentheses and, for each key, how it is read.
    (@keys ($d:tt) $keys:ident $($key:ident $read:ident)+) => {
        #[doc(hidden)]
        #[macro_export]
        macro_rules! $keys {
            ($d macro:ident($d($d given:tt)*)) => { $d macro! { $d($d given)*; $($key $read),+ } };
        }
    };
}

pub(super) use section;
