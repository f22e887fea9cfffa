//! The network in segments, for a backward pass in which each segment's gradients are done, and may leave, before the next one's
//! are begun. Where what is between the segments is kept alone, each is computed a second time on the way back (Chen et al.
//! 2016): the same bits in less memory.

use tch::Tensor;

use super::UNet;
use crate::error::{Error, Result};
use crate::native;

/// One of the network's segments, in the order of the forward pass.
#[derive(Debug, Clone, Copy)]
enum Segment {
    In,
    Down { block: usize, layer: usize },
    Downsample { block: usize },
    Mid,
    Up { block: usize, layer: usize },
    Upsample { block: usize },
    Out,
}

impl Segment {
    /// Whether its result is kept for the way up.
    fn pushes(self) -> bool {
        matches!(self, Self::In | Self::Down { .. } | Self::Downsample { .. })
    }

    /// Whether it takes what was kept last.
    fn pops(self) -> bool {
        matches!(self, Self::Up { .. })
    }

    /// What the names of its parameters begin with.
    fn prefixes(self) -> Vec<String> {
        let layers = |way: &str, block: usize, layer: usize| {
            ["resnets", "attentions"].map(|kind| format!("{way}_blocks.{block}.{kind}.{layer}.")).to_vec()
        };
        match self {
            Self::In => vec!["conv_in.".to_owned()],
            Self::Down { block, layer } => layers("down", block, layer),
            Self::Downsample { block } => vec![format!("down_blocks.{block}.downsamplers.")],
            Self::Mid => vec!["mid_block.".to_owned()],
            Self::Up { block, layer } => layers("up", block, layer),
            Self::Upsample { block } => vec![format!("up_blocks.{block}.upsamplers.")],
            Self::Out => vec!["conv_norm_out.".to_owned(), "conv_out.".to_owned()],
        }
    }
}

/// Which of the trained parameters belong to which segment.
#[derive(Debug)]
pub(crate) struct Segments {
    /// Numbers of parameters of each segment, and last those of the time embedding and its projections, which all segments take.
    of: Vec<Vec<usize>>,
}

impl Segments {
    /// Numbers of the parameters, in the order in which a backward pass ends their gradients.
    pub(crate) fn order(&self) -> Vec<usize> {
        let (time, segments) = self.of.split_last().map_or((&[][..], &[][..]), |(time, all)| (time, all));
        segments.iter().rev().flatten().chain(time).copied().collect()
    }
}

/// A segment that was passed.
#[derive(Debug)]
struct Passed {
    segment: Segment,
    /// What it took, as the ends of its own backward pass.
    x: Tensor,
    skip: Option<Tensor>,
    /// Of what it grows to.
    size: Option<(i64, i64)>,
    /// Its result with all that its backward pass needs; none: it is computed again.
    kept: Option<Tensor>,
}

/// A forward pass, and what its backward pass needs.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    unet: &'a UNet,
    text: &'a Tensor,
    /// With what the backward pass of the time embedding needs, and as the end of those of the segments.
    times: Tensor,
    times_end: Tensor,
    passed: Vec<Passed>,
    /// The prediction, [batch, out_channels, height, width] fp32; its gradient is what [`Pass::backward`] begins with.
    pub(crate) predicted: Tensor,
}

impl UNet {
    fn in_segments(&self) -> Vec<Segment> {
        let mut all = vec![Segment::In];
        for (block, down) in self.down.iter().enumerate() {
            all.extend((0..down.layers()).map(|layer| Segment::Down { block, layer }));
            all.extend(down.downsample().map(|_| Segment::Downsample { block }));
        }
        all.push(Segment::Mid);
        for (block, up) in self.up.iter().enumerate() {
            all.extend((0..up.layers()).map(|layer| Segment::Up { block, layer }));
            all.extend(up.upsample().map(|_| Segment::Upsample { block }));
        }
        all.push(Segment::Out);
        all
    }

    /// Where parameters of these names belong.
    ///
    /// # Errors
    /// One that no segment has.
    pub(crate) fn segments_of<'n>(&self, names: impl Iterator<Item = &'n str>) -> Result<Segments> {
        let prefixes: Vec<Vec<String>> = self.in_segments().into_iter().map(Segment::prefixes).collect();
        let mut of = vec![Vec::new(); prefixes.len() + 1];
        for (number, name) in names.enumerate() {
            let is_time = name.starts_with("time_embedding.") || name.contains(".time_emb_proj.");
            let starts = |all: &Vec<String>| all.iter().any(|prefix| name.starts_with(prefix));
            let found = if is_time { Some(prefixes.len()) } else { prefixes.iter().position(starts) };
            let segment = found.ok_or_else(|| Error::argument("parameter", name, "one of the UNet's"))?;
            of[segment].push(number);
        }
        Ok(Segments { of })
    }

    /// [`UNet::forward`], for a backward pass. `again`: keeps what is between the segments alone.
    pub(crate) fn pass<'a>(
        &'a self,
        sample: &Tensor,
        timesteps: &Tensor,
        text: &'a Tensor,
        again: bool,
    ) -> Result<Pass<'a>> {
        let times = self.embed(timesteps)?;
        let times_end = end_of(&times, times.requires_grad())?;
        let (mut skips, mut passed) = (Vec::<Tensor>::new(), Vec::new());
        let (mut x, mut has_gradient) = (sample.shallow_clone(), times.requires_grad());
        for segment in self.in_segments() {
            let missing = || Error::argument("skips", "used up", "one for each layer of every up block");
            let skip = segment.pops().then(|| skips.pop().ok_or_else(missing)).transpose()?;
            let size =
                skips.last().map(Tensor::size4).transpose()?.map(|(_, _, height, width)| (height, width));
            // The sample itself has none.
            let wants = has_gradient && !matches!(segment, Segment::In);
            let skip = skip.map(|skip| end_of(&skip, wants)).transpose()?;
            let one = Passed { segment, x: end_of(&x, wants)?, skip, size, kept: None };
            let result = self.segment(&one, &times_end, text)?;
            has_gradient |= result.requires_grad();
            x = result.f_detach()?;
            if segment.pushes() {
                skips.push(x.shallow_clone());
            }
            passed.push(Passed { kept: (!again).then_some(result), ..one });
        }
        Ok(Pass { unet: self, text, times, times_end, passed, predicted: x.f_set_requires_grad(true)? })
    }

    fn segment(&self, passed: &Passed, times: &Tensor, text: &Tensor) -> Result<Tensor> {
        let Passed { segment, x, skip, size, .. } = passed;
        let lacks =
            |what: &str| Error::argument("segment", format!("{segment:?}"), format!("one with {what}"));
        match *segment {
            Segment::In => self.enter(x),
            Segment::Down { block, layer } => self.down[block].layer(layer, x, times, text),
            Segment::Downsample { block } => {
                self.down[block].downsample().ok_or_else(|| lacks("a step down"))?.forward(x)
            }
            Segment::Mid => self.mid.forward(x, times, text),
            Segment::Up { block, layer } => {
                let skip = skip.as_ref().ok_or_else(|| lacks("what was kept"))?;
                self.up[block].layer(layer, x, skip, times, text)
            }
            Segment::Upsample { block } => {
                let size = size.ok_or_else(|| lacks("a size"))?;
                self.up[block].upsample().ok_or_else(|| lacks("a step up"))?.forward(x, size)
            }
            Segment::Out => self.leave(x),
        }
    }
}

impl Pass<'_> {
    /// Backward, from the gradient of the prediction. `handles`: those of the parameters; `put` gets each parameter's number and
    /// gradient, in the order of [`Segments::order`].
    pub(crate) fn backward(
        self,
        gradient: Tensor,
        segments: &Segments,
        handles: &[Tensor],
        mut put: impl FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<()> {
        let Pass { unet, text, times, times_end, passed, .. } = self;
        let mut of_x = Some(gradient);
        let (mut of_skips, mut of_times) = (Vec::new(), None);
        let mut put_all = |numbers: &[usize], made: Vec<Option<Tensor>>| {
            numbers.iter().zip(made).try_for_each(|(number, made)| {
                // What a pass does not meet, as keys where there is one token, has a gradient of zeros.
                let gradient = made.map_or_else(|| Ok(handles[*number].f_zeros_like()?), Ok::<_, Error>)?;
                put(*number, &gradient)
            })
        };
        for (number, mut one) in passed.into_iter().enumerate().rev() {
            if one.segment.pushes() {
                of_x = sum(of_x, of_skips.pop().flatten())?;
            }
            let result = one.kept.take().map_or_else(|| unet.segment(&one, &times_end, text), Ok)?;
            let own = &segments.of[number];
            let given: Vec<&Tensor> = [Some(&one.x), one.skip.as_ref(), Some(&times_end)]
                .into_iter()
                .flatten()
                .filter(|end| end.requires_grad())
                .collect();
            let ends: Vec<&Tensor> = own.iter().map(|number| &handles[*number]).chain(given).collect();
            let made = match of_x.take() {
                Some(gradient) if result.requires_grad() => native::gradients(&result, &gradient, &ends)?,
                _ => ends.iter().map(|_| None).collect(),
            };
            drop(result);
            let mut made = made.into_iter();
            put_all(own, made.by_ref().take(own.len()).collect())?;
            let mut next = |end: Option<&Tensor>| {
                if end.is_some_and(Tensor::requires_grad) { made.next().flatten() } else { None }
            };
            of_x = next(Some(&one.x));
            if one.segment.pops() {
                of_skips.push(next(one.skip.as_ref()));
            }
            of_times = sum(of_times, next(Some(&times_end)))?;
        }
        let own = segments.of.last().map_or(&[][..], Vec::as_slice);
        let ends: Vec<&Tensor> = own.iter().map(|number| &handles[*number]).collect();
        match of_times {
            Some(gradient) if !ends.is_empty() => put_all(own, native::gradients(&times, &gradient, &ends)?),
            _ => put_all(own, ends.iter().map(|_| None).collect()),
        }
    }
}

/// The same values, at which a backward pass ends.
fn end_of(tensor: &Tensor, wants: bool) -> Result<Tensor> {
    Ok(tensor.f_detach()?.f_set_requires_grad(wants)?)
}

fn sum(one: Option<Tensor>, other: Option<Tensor>) -> Result<Option<Tensor>> {
    Ok(match (one, other) {
        (Some(one), Some(other)) => Some(one.f_add(&other)?),
        (one, other) => one.or(other),
    })
}
