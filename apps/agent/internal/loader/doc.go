// Package loader makes servers load and unload models.
//
// Servers are not trusted. A call goes only to the instance's address as the runtime reports it, follows no
// redirect, and its answer is bounded.
package loader
