// Package preset turns "this engine serves this model" into what an app's spec says: image, command, flags,
// ports, health check, drain and the names of the engine's metrics.
//
// A preset is a pure function, registered by name and version. It reads only its Input, so that the command
// line, the control plane and tests get the same result. The output of a version never changes. Another
// output needs a new version.
package preset
