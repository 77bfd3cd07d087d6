//! An app that passes packets that match an expression.
//!
//! It knows the most common words of pcap-filter(7). Most crates for this need libpcap. The one that does not
//! neither says where in an expression a mistake is, nor matches `greater` as the manual describes. So the [grammar]
//! and the tests of an [expression] are here.

mod expression;
mod grammar;

use serde::Deserialize;

use crate::app::{App, AppError, Named};
use crate::io::Io;
use crate::layout::DropReason;
use expression::Expression;

/// Sends packets that match to `output`, and the others to `rejected` if that is linked. Otherwise they
/// are dropped ([`DropReason::Filtered`]).
#[derive(Debug)]
pub struct Filter {
    expression: Expression,
    matched: u64,
    rejected: u64,
}

/// The configuration of a filter.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterConfig {
    /// The expression that packets must match.
    pub expression: String,
}

const INPUT: usize = 0;

impl App for Filter {
    type Config = FilterConfig;
    const OUTPUTS: Named = Named::Only(&["output", "rejected"]);

    fn check(config: &FilterConfig) -> Result<(), AppError> {
        compile(config).map(drop)
    }

    fn start(config: FilterConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { expression: compile(&config)?, matched: 0, rejected: 0 })
    }

    fn push(&mut self, io: &mut Io) {
        let output = io.output("output");
        let rejected = io.output("rejected");
        while let Some(packet) = io.receive(INPUT) {
            let matches = self.expression.matches(packet.data());
            let (count, to, otherwise) = match matches {
                true => (&mut self.matched, output, DropReason::Unlinked),
                false => (&mut self.rejected, rejected, DropReason::Filtered),
            };
            *count += 1;
            match to {
                Some(to) => io.transmit(to, packet),
                None => io.discard(packet, otherwise),
            }
        }
    }

    fn reconfigure(&mut self, config: &FilterConfig) -> bool {
        let Ok(expression) = compile(config) else { return false };
        self.expression = expression;
        true
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("matched", self.matched), ("rejected", self.rejected)]
    }
}

fn compile(config: &FilterConfig) -> Result<Expression, AppError> {
    grammar::parse(&config.expression)
        .map_err(|reason| AppError(format!("expression = \"{}\": {reason}", config.expression)))
}

#[cfg(test)]
mod tests;
