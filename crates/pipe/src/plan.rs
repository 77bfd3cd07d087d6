//! What each agent is to do, made of the stages and the options.
