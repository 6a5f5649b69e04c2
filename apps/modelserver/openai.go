package modelserver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// apiError is an error answer, with the fields of OpenAI's errors.
type apiError struct {
	status     int
	kind       string
	code       string
	param      string
	message    string
	retryAfter time.Duration
}

// These are the codes for requests with an unknown path or method.
const (
	codeNotFound         = "not_found"
	codeMethodNotAllowed = "method_not_allowed"
)

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "invalid_request_error", code: "invalid_value", param: param, message: fmt.Sprintf(format, args...)}
}

func modelNotFound(asked, served string) *apiError {
	return &apiError{
		status: http.StatusNotFound, kind: "invalid_request_error", code: "model_not_found", param: "model",
		message: fmt.Sprintf("the model %q does not exist; this server serves %q", asked, served),
	}
}

type errorBody struct {
	Error errorDetail `json:"error"`
}

// errorDetail has all four keys that OpenAI's clients expect, with null for unknown values.
type errorDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (e *apiError) openAIErrorBody() errorBody {
	optional := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	return errorBody{errorDetail{Message: e.message, Type: e.kind, Param: optional(e.param), Code: optional(e.code)}}
}

// writeError writes an error answer in the engine's form.
func (s *Server) writeError(w http.ResponseWriter, e *apiError) {
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(max(1, e.retryAfter.Round(time.Second)/time.Second))))
	}
	writeJSON(w, e.status, s.engine.errorBody(e))
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error means that the client has disconnected, so it cannot be reported.
	_ = json.NewEncoder(w).Encode(v)
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// completion is the envelope of every answer and every chunk of both endpoints.
type completion struct {
	ID                string   `json:"id"`
	Object            string   `json:"object"`
	Created           int64    `json:"created"`
	Model             string   `json:"model"`
	SystemFingerprint string   `json:"system_fingerprint"`
	Choices           []choice `json:"choices"`
	Usage             *usage   `json:"usage,omitempty"`

	KVTransfer *kvParams `json:"kv_transfer_params,omitempty"`
}

// choice has exactly one of Message (chat), Delta (chat chunk) and Text.
type choice struct {
	Index        int      `json:"index"`
	Message      *message `json:"message,omitempty"`
	Delta        *message `json:"delta,omitempty"`
	Text         *string  `json:"text,omitempty"`
	Logprobs     *string  `json:"logprobs"`
	FinishReason *string  `json:"finish_reason"`
}

type message struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

// sampling has the parameters that both endpoints share. Other parameters (temperature, top_p, seed ...) are
// accepted and ignored.
type sampling struct {
	Model               string         `json:"model"`
	Stream              bool           `json:"stream"`
	StreamOptions       *streamOptions `json:"stream_options"`
	MaxTokens           *int           `json:"max_tokens"`
	MaxCompletionTokens *int           `json:"max_completion_tokens"`
	Stop                stopSequences  `json:"stop"`
	N                   *int           `json:"n"`
	IgnoreEOS           bool           `json:"ignore_eos"`
	KVTransfer          *kvParams      `json:"kv_transfer_params"`
	BootstrapHost       string         `json:"bootstrap_host"`
	BootstrapPort       *int           `json:"bootstrap_port"`
	BootstrapRoom       *int64         `json:"bootstrap_room"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// stopSequences is a string, a list of strings, or null.
type stopSequences []string

func (s *stopSequences) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*s = nil
		if string(data) != "null" {
			*s = stopSequences{one}
		}
		return nil
	}
	var many []string
	if json.Unmarshal(data, &many) != nil {
		return badRequest("stop", "stop must be a string or a list of strings")
	}
	*s = many
	return nil
}

type chatRequest struct {
	sampling
	Messages []chatMessage `json:"messages"`
}

type chatMessage struct {
	Role    string      `json:"role"`
	Content chatContent `json:"content"`
}

// chatContent is a string, null, or a list of text parts, which are joined.
type chatContent string

func (c *chatContent) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*c = chatContent(text)
		return nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(data, &parts) != nil {
		return badRequest("messages", "content of a message must be a string or a list of parts")
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Type != "text" {
			return badRequest("messages", "content parts of type %q are not supported: this model reads only text", p.Type)
		}
		b.WriteString(p.Text)
	}
	*c = chatContent(b.String())
	return nil
}

type completionRequest struct {
	sampling
	Prompt promptText `json:"prompt"`
}

// promptText is a string or a list of one string.
type promptText struct {
	text string
	set  bool
}

func (p *promptText) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	p.set = true
	if json.Unmarshal(data, &p.text) == nil {
		return nil
	}
	var many []string
	if json.Unmarshal(data, &many) != nil || len(many) != 1 {
		return badRequest("prompt", "prompt must be a string or a list of one string")
	}
	p.text = many[0]
	return nil
}

// decodeBody decodes a JSON body of at most limit bytes into v.
func decodeBody(w http.ResponseWriter, r *http.Request, limit int64, v any) *apiError {
	rc := http.NewResponseController(w)
	// Some writers, such as a test's recorder, have no deadlines. Then only the server's header and request timeouts
	// limit the time.
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	// The deadline must not outlive the body. It would end net/http's background read for disconnects, and this would
	// cancel a healthy request.
	_ = rc.SetReadDeadline(time.Time{})
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return &apiError{
			status: http.StatusRequestEntityTooLarge, kind: "invalid_request_error", code: "request_too_large",
			message: fmt.Sprintf("the request body is larger than %d bytes", limit),
		}
	}
	if err != nil {
		return badRequest("", "reading the request body: %v", err)
	}
	if err := json.Unmarshal(body, v); err != nil {
		if known := (*apiError)(nil); errors.As(err, &known) {
			return known
		}
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			// The client does not know the embedded struct's name.
			field := strings.TrimPrefix(wrong.Field, "sampling.")
			return badRequest(field, "%s must be of type %s, not %s", cmp.Or(field, "the request"), wrong.Type, wrong.Value)
		}
		return &apiError{status: http.StatusBadRequest, kind: "invalid_request_error", code: "invalid_json", message: fmt.Sprintf("the request body is not valid JSON: %v", err)}
	}
	return nil
}

// checkSampling validates the parameters that both endpoints share, and returns the maximum number of tokens of the
// answer.
func (s *Server) checkSampling(r *sampling, promptTokens int) (limit int, problem *apiError) {
	if !s.engine.anyModel {
		if problem := s.checkModel(r.Model); problem != nil {
			return 0, problem
		}
	}
	switch {
	case r.N != nil && *r.N != 1:
		return 0, badRequest("n", "n must be 1, not %d", *r.N)
	case len(r.Stop) > 4:
		return 0, badRequest("stop", "stop takes at most 4 sequences, not %d", len(r.Stop))
	case r.StreamOptions != nil && !r.Stream:
		return 0, badRequest("stream_options", "stream_options needs stream to be true")
	}
	if slices.Contains(r.Stop, "") {
		return 0, badRequest("stop", "stop must not contain an empty sequence")
	}
	defer func() {
		if s.rooms != nil && s.cfg.Engine.Role == sglangPrefill {
			limit = min(limit, 1) // an SGLang prefill server generates the first token only, whatever the request says
		}
	}()
	room := s.cfg.MaxModelLen - promptTokens
	asked, param := r.MaxTokens, "max_tokens"
	if r.MaxCompletionTokens != nil {
		asked, param = r.MaxCompletionTokens, "max_completion_tokens"
	}
	switch {
	case asked != nil && *asked < 1:
		return 0, badRequest(param, "%s must be at least 1, not %d", param, *asked)
	case room < 1, asked != nil && *asked > room:
		e := badRequest("", "the model's context is %d tokens; the prompt has %d tokens, so the requested answer does not fit", s.cfg.MaxModelLen, promptTokens)
		e.code = "context_length_exceeded"
		return 0, e
	case asked != nil:
		return *asked, nil
	}
	return room, nil
}

// checkModel refuses a request for a model that is not served.
func (s *Server) checkModel(asked string) *apiError {
	switch {
	case asked == "":
		return badRequest("model", "model is missing: name the model, %q", s.cfg.Model)
	case !slices.Contains(s.modelNames(), asked):
		return modelNotFound(asked, s.cfg.Model)
	}
	return nil
}

// modelNames returns all names of the model, and then the names of the loaded adapters.
func (s *Server) modelNames() []string {
	names := append([]string{s.cfg.Model}, s.cfg.Engine.Aliases...)
	for _, a := range s.adapters.list() {
		if a.state == modelReady {
			names = append(names, a.name)
		}
	}
	return names
}

// answeredModel returns the name of the model in an answer: the name of the adapter, or the first name of the model.
func (s *Server) answeredModel(asked string) string {
	if s.engine.anyModel && asked != "" {
		return asked
	}
	if _, ok := s.adapters.readyModel(asked); ok {
		return asked
	}
	return s.cfg.Model
}

// decodeStrict refuses fields that v does not have, so that a misspelt fault is not ignored.
func decodeStrict(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

func countTokens(text string) int { return len(strings.Fields(text)) }
