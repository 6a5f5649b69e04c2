package preset

import (
	"fmt"
	"regexp"
	"strings"
)

// modelRef is a parsed Input.Model.
type modelRef struct {
	scheme string
	// path is the rest after the scheme: ORG/NAME for hf, an absolute path for file.
	path string
	// revision is a commit, tag or branch, for hf only.
	revision string
}

var (
	hubName = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]*/[A-Za-z0-9][-A-Za-z0-9_.]*(:[-A-Za-z0-9_.]+)?$`)
	commit  = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

const maxModel = 1024

// parseModel parses Input.Model. If the text is not a valid model, wrong is the reason, and fix is the remedy.
func parseModel(text string) (ref modelRef, wrong, fix string) {
	const example = "for example hf://meta-llama/Llama-3.1-8B-Instruct"
	if text == "" {
		return ref, "missing", "name the model, " + example
	}
	if len(text) > maxModel || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return ref, fmt.Sprintf("has spaces or control characters, or is longer than %d bytes", maxModel), "write a URL, " + example
	}
	scheme, path, ok := strings.Cut(text, "://")
	if !ok {
		if strings.HasPrefix(text, "/") {
			return ref, fmt.Sprintf("%q has no scheme", text), "write file://" + text
		}
		return ref, fmt.Sprintf("%q has no scheme", text), "write hf://" + text + " for a model of Hugging Face's hub, or file:///PATH for a folder"
	}
	ref = modelRef{scheme: scheme, path: path}
	switch scheme {
	case "hf":
		ref.path, ref.revision, _ = strings.Cut(path, "@")
		if !hubName.MatchString(ref.path) || strings.HasSuffix(path, "@") || strings.HasPrefix(ref.revision, "-") {
			return ref, fmt.Sprintf("%q is not hf://ORG/NAME or hf://ORG/NAME@REVISION", text), "write " + example[len("for example "):]
		}
	case "file":
		if !strings.HasPrefix(path, "/") {
			return ref, fmt.Sprintf("%q has no absolute path", text), "write file:///PATH, with three slashes"
		}
	case "s3", "gs", "https", "oci":
		if path == "" || strings.HasPrefix(path, "/") {
			return ref, fmt.Sprintf("%q names no host or bucket", text), "write " + scheme + "://HOST-OR-BUCKET/PATH"
		}
	default:
		return ref, fmt.Sprintf("the scheme %q is not known", scheme), "use hf, file, s3, gs, https or oci"
	}
	return ref, "", ""
}

// isPinned reports whether each start loads the same weights.
func (m modelRef) isPinned() bool { return m.scheme != "hf" || commit.MatchString(m.revision) }
