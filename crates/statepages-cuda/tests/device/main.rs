//! Tests of the GPU data plane. All but `hardware` run without a GPU, against a stand-in driver that
//! runs the kernels as host code.

mod compiled;
mod errors;
mod graphs;
mod hardware;
mod lockstep;
mod stand_in;
mod world;
