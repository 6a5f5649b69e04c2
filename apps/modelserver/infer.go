package modelserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
)

const (
	// bodyTimeout limits the time to read a body. It is enough for the largest body over a slow connection.
	bodyTimeout = 30 * time.Second
	// writeTimeout ends a request when its client stops reading, because the request would hold a slot.
	writeTimeout = 30 * time.Second
	// statusClosedRequest is nginx's code for a request that ended without an answer. Only metrics use it.
	statusClosedRequest = 499
)

var (
	errRequestTimeout = errors.New("the request took longer than the server allows")
	errDrainTimeout   = errors.New("the server stopped before the request ended")
)

// shape has the differences between the answers of the two endpoints.
type shape struct {
	idPrefix    string
	object      string
	chunkObject string
	whole       func(text string) choice
	opening     func() (choice, bool) // a chunk before the first token, if any
	chunk       func(token string) choice
	last        func() choice // the chunk with the finish reason
}

// serveInference handles a request of both endpoints in the stages of the package comment.
func (s *Server) serveInference(w http.ResponseWriter, r *http.Request, parse func() (*sampling, plan, shape, *apiError)) {
	arrived := time.Now()
	code := http.StatusOK
	defer func() { s.metrics.recordStatus(r.URL.Path, code) }()
	refuse := func(e *apiError) {
		code = e.status
		s.writeError(w, e)
	}

	ctx, cancel := context.WithTimeoutCause(r.Context(), s.cfg.RequestTimeout, errRequestTimeout)
	defer cancel()
	if !s.isReady() {
		refuse(&apiError{status: http.StatusServiceUnavailable, kind: "service_unavailable", code: "model_loading", message: "the model is loading", retryAfter: time.Second})
		return
	}
	req, plan, form, problem := parse()
	if problem != nil {
		refuse(problem)
		return
	}
	// This comes after the body was read, because only then net/http notices a disconnect.
	if s.blockWhileHung(ctx) {
		code = statusClosedRequest
		panic(http.ErrAbortHandler)
	}
	release, queued, refused := s.admitRequest(ctx, arrived)
	if refused != nil {
		refuse(refused)
		return
	}
	defer release()
	if refused := s.takeKV(ctx, w, req, plan); refused != nil {
		refuse(refused)
		return
	}
	if refused := s.handOverPrompt(ctx, w, req, plan); refused != nil {
		refuse(refused)
		return
	}
	if refused := s.callPrefill(ctx, w, plan); refused != nil {
		refuse(refused)
		return
	}
	if refused := s.writeAnswer(ctx, w, req, plan, form, arrived, queued); refused != nil {
		refuse(refused)
	}
}

// admitRequest waits for a slot, and fails a share of the requests for the fault ErrorRate. If refused is nil, the caller must
// call release once.
func (s *Server) admitRequest(ctx context.Context, arrived time.Time) (release func(), queued time.Duration, refused *apiError) {
	release, err := s.queue.acquire(ctx)
	switch {
	case errors.Is(err, errQueueFull):
		return nil, 0, &apiError{
			status: s.engine.statusQueueFull, kind: "rate_limit_error", code: "queue_full",
			message: "the server is at capacity and its queue is full; try again later", retryAfter: s.retryAfter(),
		}
	case err != nil:
		return nil, 0, interruptionError(err)
	}
	queued = time.Since(arrived)
	s.metrics.recordAdmission(queued)
	if s.faults.drawError() {
		release()
		return nil, 0, &apiError{status: http.StatusInternalServerError, kind: "server_error", code: "injected_error", message: "an injected fault failed this request"}
	}
	return release, queued, nil
}

// writeAnswer generates the answer and writes it. It returns an error only while nothing has been
// written yet.
func (s *Server) writeAnswer(ctx context.Context, w http.ResponseWriter, req *sampling, plan plan, form shape, arrived time.Time, queued time.Duration) *apiError {
	s.metrics.recordPrefill(plan.promptTokens)
	s.cache.addTokens(plan.promptTokens)
	done := request{finish: finishAbort, prompt: plan.promptTokens, limit: plan.limit, queued: queued}
	last := arrived
	defer func() {
		s.cache.addTokens(-done.prompt - done.generated)
		done.total = time.Since(arrived)
		if done.generated > 0 {
			done.decode = done.total - done.first
		}
		s.metrics.recordEnd(done)
	}()

	head := completion{ID: form.idPrefix + s.newID(), Object: form.object, Created: arrived.Unix(), Model: s.answeredModel(req.Model), SystemFingerprint: s.cfg.VersionLabel}
	var out *stream
	if req.Stream {
		head.Object = form.chunkObject
		out = &stream{w: w, rc: http.NewResponseController(w), head: head}
		if err := out.writeOpening(form); err != nil {
			return nil
		}
	}
	faults, _, _ := s.faults.currentFaults()
	speed := newPace(s.cfg.TimeToFirstToken, s.cfg.TokenRate, faults.SlowFactor)
	err := speed.emitTokens(ctx, plan.tokens, func(i int, token string) error {
		now := time.Now()
		s.metrics.recordToken(i, now.Sub(arrived), now.Sub(last))
		if last = now; i == 0 {
			done.first = now.Sub(arrived)
		}
		s.cache.addTokens(1)
		done.generated++
		if out == nil {
			return nil
		}
		return out.sendChoice(form.chunk(token))
	})
	if err != nil {
		refused := interruptionError(err)
		if out == nil {
			return refused
		}
		out.sendError(s.engine.errorBody(refused))
		return nil
	}

	done.finish = plan.finish
	total := &usage{PromptTokens: plan.promptTokens, CompletionTokens: len(plan.tokens), TotalTokens: plan.promptTokens + len(plan.tokens)}
	if out != nil {
		if out.writeEnd(form, plan.finish, req.StreamOptions != nil && req.StreamOptions.IncludeUsage, total) != nil {
			done.finish = finishAbort
		}
		return nil
	}
	c := form.whole(strings.Join(plan.tokens, ""))
	c.FinishReason = &plan.finish
	head.Choices, head.Usage, head.KVTransfer = []choice{c}, total, s.offerKV(req, plan, head.ID)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	writeJSON(w, http.StatusOK, head)
	return nil
}

// interruptionError returns the answer for a request that did not finish, with the reason. After a disconnect no client
// reads it.
func interruptionError(err error) *apiError {
	e := &apiError{status: http.StatusServiceUnavailable, kind: "service_unavailable", code: "interrupted", message: err.Error(), retryAfter: time.Second}
	switch {
	case errors.Is(err, context.Canceled):
		e.status, e.code = statusClosedRequest, "client_closed_request"
	case errors.Is(err, errRequestTimeout):
		e.status, e.kind, e.code, e.retryAfter = http.StatusGatewayTimeout, "timeout_error", "request_timeout", 0
	}
	return e
}

// retryAfter returns an estimate of the time until a slot is free: the time of a typical answer.
func (s *Server) retryAfter() time.Duration {
	const typicalTokens = 64
	if s.cfg.TokenRate <= 0 {
		return time.Second
	}
	return s.cfg.TimeToFirstToken + time.Duration(typicalTokens/s.cfg.TokenRate*float64(time.Second))
}

// stream writes server-sent events. It flushes each event, so that a token is sent when it is generated.
type stream struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	head completion
}

func (s *stream) writeOpening(form shape) error {
	s.w.Header().Set("Content-Type", "text/event-stream")
	s.w.Header().Set("Cache-Control", "no-cache")
	// Without this header, proxies such as nginx buffer tokens.
	s.w.Header().Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
	if first, ok := form.opening(); ok {
		return s.sendChoice(first)
	}
	return s.rc.Flush()
}

func (s *stream) sendChoice(c choice) error {
	s.head.Choices = []choice{c}
	return s.sendEvent(s.head)
}

func (s *stream) sendEvent(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.writeData(data)
}

func (s *stream) writeData(data []byte) error {
	_ = s.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	var b bytes.Buffer
	b.WriteString("data: ")
	b.Write(data)
	b.WriteString("\n\n")
	if _, err := s.w.Write(b.Bytes()); err != nil {
		return err
	}
	return s.rc.Flush()
}

// writeEnd writes the last events of a complete answer.
func (s *stream) writeEnd(form shape, finish string, includeUsage bool, total *usage) error {
	last := form.last()
	last.FinishReason = &finish
	if err := s.sendChoice(last); err != nil {
		return err
	}
	if includeUsage {
		s.head.Choices, s.head.Usage = []choice{}, total
		if err := s.sendEvent(s.head); err != nil {
			return err
		}
	}
	return s.writeData([]byte("[DONE]"))
}

// sendError ends an incomplete answer with an error event and without [DONE], so that no client
// takes it for a complete answer. A write error is ignored, because then the client has disconnected.
func (s *stream) sendError(body any) { _ = s.sendEvent(body) }
