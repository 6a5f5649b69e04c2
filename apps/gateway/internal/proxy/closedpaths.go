package proxy

import (
	"net/url"
	"path"
	"strings"
)

// maxUnescapes is the maximum number of times that a path is decoded. Instances decode it once, and a proxy in front
// of them may decode it, too.
const maxUnescapes = 3

// isClosed reports whether an instance may read the path as a path that begins with a closed path. Instances differ
// in how they read escapes, slashes, dots and parameters, so each reading counts. A path with a segment ".." is
// always closed, because readings differ in what the segment removes, and because clients resolve it before they
// send.
func isClosed(requested string, closed []string) bool {
	if len(closed) == 0 {
		return false
	}
	begins := func(p string) bool {
		p = strings.ToLower(p)
		for _, c := range closed {
			if strings.HasPrefix(p, c) {
				return true
			}
		}
		return false
	}
	for unescapes := 0; ; unescapes++ {
		if goesUp(requested) || begins(requested) || begins(plainPath(requested)) {
			return true
		}
		decoded, err := url.PathUnescape(requested)
		if err != nil || decoded == requested || unescapes == maxUnescapes {
			return false
		}
		requested = decoded
	}
}

// goesUp reports whether a segment of the path is "..".
func goesUp(p string) bool {
	if !strings.Contains(p, "..") {
		return false
	}
	p, _, _ = strings.Cut(p, "?")
	for s := range strings.SplitSeq(strings.ReplaceAll(p, `\`, "/"), "/") {
		if s, _, _ = strings.Cut(s, ";"); s == ".." {
			return true
		}
	}
	return false
}

// plainPath returns the path without parameters of segments, double slashes, backslashes and dots.
func plainPath(p string) string {
	p, _, _ = strings.Cut(p, "?")
	if !strings.ContainsAny(p, `\;`) && !strings.Contains(p, "//") && !strings.Contains(p, "/.") {
		return p
	}
	segments := strings.Split(strings.ReplaceAll(p, `\`, "/"), "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	return path.Clean("/" + strings.Join(segments, "/"))
}
