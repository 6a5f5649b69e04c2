package analysis

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"strings"
	"time"
	"unicode"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// defaultTimeout is ample for an answer that is known; what has to be found out first is
// inconclusive until then.
const defaultTimeout = 5 * time.Second

// Timeout of a call of the web-hook.
func Timeout(h *windlassv1.WebHook) time.Duration {
	if h.GetTimeout() == nil {
		return defaultTimeout
	}
	return h.GetTimeout().AsDuration()
}

// Hook is a call of a web-hook that is due.
type Hook struct {
	URL     string
	Timeout time.Duration
	// SigningSecret is the name of a secret of the environment, empty for none.
	SigningSecret string
	Call          Call
}

// Call is what a web-hook is told: the schema's WebHook documents it.
type Call struct {
	ID            string   `json:"id"`
	Attempt       int32    `json:"attempt"`
	Check         string   `json:"check"`
	Workspace     Named    `json:"workspace"`
	Project       Named    `json:"project"`
	Environment   Named    `json:"environment"`
	App           Named    `json:"app"`
	RolloutID     string   `json:"rolloutId"`
	Deployment    Release  `json:"deployment"`
	OldDeployment *Release `json:"oldDeployment,omitempty"`
	Region        string   `json:"region"`
	Wave          string   `json:"wave"`
	Stage         string   `json:"stage"`
	// Step from 1; 0 in a bake.
	Step int `json:"step,omitempty"`
	// Since when the new version serves so, unix ms.
	Since int64 `json:"since"`
}

// Stages of a Call.
const (
	StageStep = "step"
	StageBake = "bake"
)

// Named is a thing by its id, and by the name that it has now.
type Named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Release is a version of an app.
type Release struct {
	ID      string `json:"id"`
	Version int32  `json:"version"`
}

// CallID returns the id of a call. It is a function of the arguments and not random, so that a
// call that is repeated after a crash has the same id.
func CallID(rollout, region, check string, since int64, attempt int32) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d\x00%d", rollout, region, check, since, attempt))
	return hex.EncodeToString(sum[:16])
}

// ParseHookURL reads the address of a web-hook. Its errors do not repeat the address, which
// may hold what somebody should not have put there.
func ParseHookURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("it is no address of http or https")
	case u.User != nil:
		return nil, errors.New("it holds a user or a password, for all to see who may see the app")
	case u.Fragment != "":
		return nil, errors.New("it holds a fragment, which is never sent")
	}
	return u, nil
}

// Said is what a web-hook says of the new version.
type Said struct {
	Verdict Verdict
	// Message is one line of printable text, or none.
	Message string
}

// ParseAnswer reads the body of a web-hook's answer. Its errors are for people, and repeat
// nothing of the body.
func ParseAnswer(body []byte) (said *Said, figure *float64, err error) {
	var answer struct {
		Verdict string   `json:"verdict"`
		Message string   `json:"message"`
		Figure  *float64 `json:"figure"`
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if decoder.Decode(&answer) != nil {
		return nil, nil, errors.New(`its answer is not JSON such as {"verdict": "pass", "message": "..."}`)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("its answer is more than one JSON value")
	}
	said = &Said{Message: Printable(answer.Message)}
	switch answer.Verdict {
	case "pass":
		said.Verdict = Passed
	case "fail":
		said.Verdict = Failed
	case "inconclusive":
		said.Verdict = Inconclusive
	default:
		return nil, nil, errors.New("its answer has no verdict of pass, fail or inconclusive")
	}
	return said, answer.Figure, nil
}

// Printable is the text as one line that does nothing to the terminal that shows it.
func Printable(text string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)), " ")
}

// judgeSaid takes a web-hook at its word.
func judgeSaid(f Figures) (Verdict, string) {
	if f.Said == nil {
		return Inconclusive, "the web-hook has said nothing"
	}
	text := f.Said.Message
	if text == "" {
		text = map[Verdict]string{
			Passed: "the web-hook passes it", Failed: "the web-hook fails it", Inconclusive: "the web-hook cannot tell",
		}[f.Said.Verdict]
	}
	if f.New != nil && !math.IsNaN(*f.New) && !math.IsInf(*f.New, 0) {
		text = number(*f.New) + ": " + text
	}
	return f.Said.Verdict, text
}
