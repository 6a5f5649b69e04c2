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

// defaultTimeout is long enough for a webhook that knows its answer. A webhook that has to measure first
// answers inconclusive until it has a result.
const defaultTimeout = 5 * time.Second

// Timeout returns the timeout of a call of the webhook.
func Timeout(h *windlassv1.WebHook) time.Duration {
	if h.GetTimeout() == nil {
		return defaultTimeout
	}
	return h.GetTimeout().AsDuration()
}

// Hook is a call of a webhook that is due.
type Hook struct {
	URL     string
	Timeout time.Duration
	// SigningSecret is the name of a secret of the environment; empty: calls are not signed.
	SigningSecret string
	Call          Call
}

// Call is the body of the request to a webhook. The message WebHook in the proto documents it.
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
	// Step counts from 1; 0 in a bake.
	Step int `json:"step,omitempty"`
	// Since is when the new version began to serve at this step or in this bake, in Unix milliseconds.
	Since int64 `json:"since"`
}

// Stages of a Call.
const (
	StageStep = "step"
	StageBake = "bake"
)

// Named identifies an object by its id and its present name.
type Named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Release identifies a version of an app by its deployment's id and its number.
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

// ParseHookURL parses the URL of a webhook. Its errors do not quote the URL, because it can contain a
// password.
func ParseHookURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("it is not an http or https URL")
	case u.User != nil:
		return nil, errors.New("it contains a user or a password, which everybody who can read the app would see")
	case u.Fragment != "":
		return nil, errors.New("it contains a fragment, which is never sent")
	}
	return u, nil
}

// Answer of a webhook about the new version.
type Answer struct {
	Verdict Verdict
	// Message is one line of printable text, or empty.
	Message string
}

// ParseAnswer parses the body of a webhook's answer. Its errors are shown to people, and do not quote
// the body.
func ParseAnswer(body []byte) (answer *Answer, figure *float64, err error) {
	var read struct {
		Verdict string   `json:"verdict"`
		Message string   `json:"message"`
		Figure  *float64 `json:"figure"`
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if decoder.Decode(&read) != nil {
		return nil, nil, errors.New(`its answer is not JSON such as {"verdict": "pass", "message": "..."}`)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("its answer is more than one JSON value")
	}
	answer = &Answer{Message: Printable(read.Message)}
	switch read.Verdict {
	case "pass":
		answer.Verdict = Passed
	case "fail":
		answer.Verdict = Failed
	case "inconclusive":
		answer.Verdict = Inconclusive
	default:
		return nil, nil, errors.New("its answer has no verdict of pass, fail or inconclusive")
	}
	return answer, read.Figure, nil
}

// Printable returns the text as one line without control characters, which a terminal could interpret.
func Printable(text string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)), " ")
}

// judgeWebHook returns the webhook's verdict, with its message and figure as the explanation.
func judgeWebHook(f Figures) (Verdict, string) {
	if f.Answer == nil {
		return Inconclusive, "the webhook has not answered"
	}
	text := f.Answer.Message
	if text == "" {
		text = map[Verdict]string{
			Passed: "the webhook passes it", Failed: "the webhook fails it", Inconclusive: "the webhook cannot tell",
		}[f.Answer.Verdict]
	}
	if f.New != nil && !math.IsNaN(*f.New) && !math.IsInf(*f.New, 0) {
		text = numberText(*f.New) + ": " + text
	}
	return f.Answer.Verdict, text
}
