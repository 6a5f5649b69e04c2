package cli

import (
	"fmt"
	"regexp"
	"strconv"
)

// Allowed differences of minor versions: this command may be one older or newer than the control plane.
// An agent may be two older and none newer, because the control plane is upgraded first.
const (
	commandMinors = 1
	agentMinors   = 2
)

// releasePattern matches the beginning of a version: v0.3.1, or v0.3.1-12-gabcdef0 for a commit after it.
var releasePattern = regexp.MustCompile(`^v?(\d+)\.(\d+)\.`)

// skew is the difference between two versions.
type skew struct {
	// known is false if the versions differ and one of them is not a release, but a commit, or if one is "dev".
	known bool
	// minors is how many minor versions newer the first is. A major version counts as a thousand.
	minors int
}

// unversioned is the version of a program that was built without one. Two such programs may differ.
const unversioned = "dev"

func skewOf(version, from string) skew {
	if version == from && version != "" && version != unversioned {
		return skew{known: true}
	}
	v, okV := minorOf(version)
	f, okF := minorOf(from)
	return skew{okV && okF, v - f}
}

// minorOf returns a number for the minor version. The number includes the major version.
func minorOf(version string) (int, bool) {
	m := releasePattern.FindStringSubmatch(version)
	if m == nil {
		return 0, false
	}
	major, errMajor := strconv.Atoi(m[1])
	minor, errMinor := strconv.Atoi(m[2])
	if errMajor != nil || errMinor != nil || minor >= 1000 {
		return 0, false
	}
	return major*1000 + minor, true
}

// checkVersions compares this command with the control plane.
func checkVersions(command, server string) check {
	c := check{Name: "versions", Result: checkOK, Detail: fmt.Sprintf("windlass %s, control plane %s", orDash(command), orDash(server))}
	s := skewOf(command, server)
	switch {
	case !s.known:
		c.Detail += ": these cannot be compared"
	case s.minors > commandMinors:
		c.Result, c.Fix = checkFail, fmt.Sprintf("This command may be %d minor version newer than the control plane. Upgrade the control plane, or use an older command.", commandMinors)
	case s.minors < -commandMinors:
		c.Result, c.Fix = checkFail, fmt.Sprintf("This command may be %d minor version older than the control plane. Upgrade this command.", commandMinors)
	}
	return c
}
