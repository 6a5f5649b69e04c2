package loader

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/models"
)

const (
	// maxList is the maximum size of a server's list of models, in bytes, and maxListed is its
	// maximum number of models. An index of 10,000 models has about 1 MiB. maxAnswer is the maximum
	// size of other answers and of errors, in bytes.
	maxList   = 8 << 20
	maxListed = 20_000
	maxAnswer = 64 << 10
	// maxHeld is the maximum number of loaded models of a server, because the agent keeps their
	// names. maxNames is the maximum size of these names together, in bytes, and maxName of one
	// name. A model with a longer name is ignored, because no app can have such a name.
	maxHeld  = 10_000
	maxNames = 512 << 10
	maxName  = 253
	// readyAtOnce is how many models of a server are asked at the same time whether they are ready.
	// readyEach is how many models one call of Held asks.
	readyAtOnce = 8
	readyEach   = 64
	// pause is the time between two checks whether a model is ready, or unloaded.
	pause = 100 * time.Millisecond
	// patience is how long a loaded model may take to be ready, and an unloaded model to be gone.
	patience = time.Minute
	// questionTimeout limits a question to a server. unloadTimeout limits an unload, which may wait
	// for requests. A load is limited by the caller's context.
	questionTimeout = 10 * time.Second
	unloadTimeout   = 5 * time.Minute
	// forget is the time after which a server that is not asked any more is forgotten.
	forget = time.Hour
)

// Loader calls servers of models. It is safe for concurrent use.
type Loader struct {
	// Client calls servers. It must connect only to addresses of instances, and must have no
	// timeout of its own.
	Client *http.Client

	mu sync.Mutex
	// checks has, by server id, the times of the readiness checks of the server's models.
	checks map[string]*checks
}

// checks has the times of the checks of one process of a server, by model name.
type checks struct {
	incarnation string
	// asked is when the server was asked last.
	asked time.Time
	at    map[string]time.Time
}

var _ models.Loader = (*Loader)(nil)

// Held implements models.Loader.
func (l *Loader) Held(ctx context.Context, s models.Server, first []string) ([]models.Held, error) {
	if s.Protocol.HasAdapters() {
		return l.listAdapters(ctx, s)
	}
	index, err := l.index(ctx, s)
	if err != nil {
		return nil, err
	}
	var held []models.Held
	at, ready, loading := map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, m := range index { // An index has an entry for each version of a model.
		switch m.State {
		case "READY":
			ready[m.Name] = true
		case "LOADING":
			loading[m.Name] = true
		case "UNLOADING":
		default:
			continue
		}
		if _, ok := at[m.Name]; !ok {
			at[m.Name] = len(held)
			held = append(held, models.Held{Name: m.Name})
		}
	}
	for i := range held {
		// Only a model that the index calls ready is asked. The other models are not ready, as the
		// index says.
		name := held[i].Name
		held[i].Checked, held[i].Loading = !ready[name], loading[name] && !ready[name]
	}
	if err := checkSize(held); err != nil {
		return nil, err
	}
	slots := make(chan struct{}, readyAtOnce)
	var asking sync.WaitGroup
	for _, name := range l.next(s, slices.Collect(maps.Keys(ready)), first) {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			// If the server does not answer, nothing is known about the model.
			if ok, err := l.isReady(ctx, s, name); err == nil {
				held[at[name]].Checked, held[at[name]].Ready = true, ok
				l.noteChecked(s, name)
			}
		})
	}
	asking.Wait()
	return held, nil
}

// checkSize returns an error if the server has more models than the agent keeps, or too long names.
func checkSize(held []models.Held) error {
	names := 0
	for _, h := range held {
		names += len(h.Name)
	}
	if len(held) > maxHeld || names > maxNames {
		return errHeld
	}
	return nil
}

// next returns at most readyEach of the names: first the names in first, and then those that were
// checked longest ago.
func (l *Loader) next(s models.Server, names, first []string) []string {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.checks[s.ID]
	if known == nil || known.incarnation != s.Incarnation {
		if l.checks == nil {
			l.checks = map[string]*checks{}
		}
		known = &checks{incarnation: s.Incarnation, at: map[string]time.Time{}}
		l.checks[s.ID] = known
	}
	known.asked = now
	maps.DeleteFunc(l.checks, func(_ string, c *checks) bool { return now.Sub(c.asked) > forget })
	at := make(map[string]time.Time, len(names))
	for _, name := range names {
		at[name] = known.at[name]
	}
	known.at = at // drops the models that are gone
	if len(names) <= readyEach {
		return names
	}
	rank := make(map[string]int, len(first))
	for _, name := range first {
		rank[name] = -1
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank[a], rank[b]), at[a].Compare(at[b]), cmp.Compare(a, b))
	})
	return names[:readyEach]
}

// noteChecked records when a server answered whether a model is ready.
func (l *Loader) noteChecked(s models.Server, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.checks[s.ID]; known != nil && known.incarnation == s.Incarnation {
		known.at[name] = time.Now()
	}
}

// Load implements models.Loader.
func (l *Loader) Load(ctx context.Context, s models.Server, m models.Model) error {
	if s.Protocol.HasAdapters() {
		return l.loadAdapter(ctx, s, m)
	}
	if _, err := l.call(ctx, s, request{method: http.MethodPost, path: "/v2/repository/models/" + url.PathEscape(m.Name) + "/load", body: map[string]any{}}); err != nil {
		return fmt.Errorf("the server did not load the model: %w", err)
	}
	return taken(wait(ctx, "the server has loaded the model, and says that the model is not ready", func(ctx context.Context) (bool, error) { return l.isReady(ctx, s, m.Name) }))
}

// Unload implements models.Loader.
func (l *Loader) Unload(ctx context.Context, s models.Server, m models.Model) error {
	if s.Protocol.HasAdapters() {
		return l.unloadAdapter(ctx, s, m)
	}
	if _, err := l.call(ctx, s, request{
		method: http.MethodPost, path: "/v2/repository/models/" + url.PathEscape(m.Name) + "/unload", body: map[string]any{}, within: unloadTimeout,
	}); err != nil && statusOf(err) != http.StatusNotFound {
		return fmt.Errorf("the server did not unload the model: %w", err)
	}
	return wait(ctx, "the server still has the model", func(ctx context.Context) (bool, error) {
		index, err := l.index(ctx, s)
		return !slices.ContainsFunc(index, func(e indexEntry) bool { return e.Name == m.Name }), err
	})
}

// wait calls done until done returns true or an error, for patience at most. After that, wait returns
// an error with the text of the argument otherwise.
func wait(ctx context.Context, otherwise string, done func(ctx context.Context) (bool, error)) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		ok, err := done(limited)
		if limited.Err() == nil && (ok || err != nil) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-limited.Done():
			return notDoneError(otherwise)
		}
	}
}

type indexEntry struct{ Name, State string }

// index lists the models that a server has. It leaves out models that are not loaded.
func (l *Loader) index(ctx context.Context, s models.Server) ([]indexEntry, error) {
	answer, err := l.call(ctx, s, request{method: http.MethodPost, path: "/v2/repository/index", body: map[string]any{}, most: maxList, within: questionTimeout})
	if err != nil {
		return nil, err
	}
	var index []indexEntry
	err = eachOf(answer, func(d *json.Decoder) error {
		var e indexEntry
		if err := d.Decode(&e); err != nil {
			return err
		}
		if len(e.Name) <= maxName && e.State != "" && e.State != "UNAVAILABLE" {
			index = append(index, indexEntry{strings.Clone(e.Name), e.State})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the server's index of models cannot be read: %w", err)
	}
	return index, nil
}

// eachOf calls decode for each element of a JSON list. It fails if the list has more than maxListed
// elements. So a server cannot decide how much memory and time its list takes.
func eachOf(list []byte, decode func(*json.Decoder) error) error {
	d := json.NewDecoder(bytes.NewReader(list))
	open, err := d.Token()
	switch {
	case err != nil:
		return err
	case open == nil: // null
		return nil
	case open != json.Delim('['):
		return errNoList
	}
	for n := 0; d.More(); n++ {
		if n == maxListed {
			return errTooMany
		}
		if err := decode(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

var (
	errNoList  = errors.New("it is not a list")
	errTooMany = fmt.Errorf("it has more than %d models", maxListed)
	errHeld    = fmt.Errorf("the server says that it has more than %d models loaded, or names of more than %d bytes", maxHeld, maxNames)
)

// isReady asks a server whether a model is ready.
func (l *Loader) isReady(ctx context.Context, s models.Server, name string) (bool, error) {
	_, err := l.call(ctx, s, request{method: http.MethodGet, path: "/v2/models/" + url.PathEscape(name) + "/ready", within: questionTimeout})
	if status := statusOf(err); status >= 400 && status < 600 {
		return false, nil
	}
	return err == nil, err
}

// listAdapters lists the adapters of a server. In the server's list of models, an adapter names the
// model that it belongs to.
func (l *Loader) listAdapters(ctx context.Context, s models.Server) ([]models.Held, error) {
	answer, err := l.call(ctx, s, request{method: http.MethodGet, path: "/v1/models", most: maxList, within: questionTimeout})
	if err != nil {
		return nil, err
	}
	var list struct{ Data json.RawMessage }
	var held []models.Held
	if err = json.Unmarshal(answer, &list); err == nil && list.Data != nil {
		err = eachOf(list.Data, func(d *json.Decoder) error {
			var m struct{ ID, Parent string }
			if err := d.Decode(&m); err != nil {
				return err
			}
			if m.Parent != "" && len(m.ID) <= maxName {
				held = append(held, models.Held{Name: m.ID, Checked: true, Ready: true})
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("the server's list of models cannot be read: %w", err)
	}
	return held, checkSize(held)
}

func (l *Loader) loadAdapter(ctx context.Context, s models.Server, m models.Model) error {
	if m.Path == "" {
		return errors.New("an adapter needs model.path, from which the server loads it")
	}
	load := func() error {
		_, err := l.call(ctx, s, request{method: http.MethodPost, path: adapterPath(s, "load_lora_adapter"), body: map[string]any{"lora_name": m.Name, "lora_path": m.Path}})
		return err
	}
	err := load()
	if err != nil && saysAny(err, "already been loaded", "already loaded", "already exists") {
		// The adapter may be another version, or may come from an earlier attempt. No gateway sends
		// to it.
		if err = l.unloadAdapter(ctx, s, m); err != nil {
			return fmt.Errorf("the server has another adapter of this name: %w", err)
		}
		err = load()
	}
	if err != nil {
		return fmt.Errorf("the server did not load the adapter: %w", err)
	}
	// The result is checked, because a server may answer that it has loaded an adapter and not
	// serve it.
	return taken(wait(ctx, "the server has loaded the adapter, and does not list it", func(ctx context.Context) (bool, error) { return l.hasAdapter(ctx, s, m.Name) }))
}

func (l *Loader) unloadAdapter(ctx context.Context, s models.Server, m models.Model) error {
	_, err := l.call(ctx, s, request{method: http.MethodPost, path: adapterPath(s, "unload_lora_adapter"), body: map[string]any{"lora_name": m.Name}, within: unloadTimeout})
	if err != nil && statusOf(err) != http.StatusNotFound && !saysAny(err, "does not exist") { // SGLang answers 400
		return fmt.Errorf("the server did not unload the adapter: %w", err)
	}
	return wait(ctx, "the server still lists the adapter", func(ctx context.Context) (bool, error) {
		has, err := l.hasAdapter(ctx, s, m.Name)
		return !has, err
	})
}

// adapterPath returns the path of a call for adapters. vLLM and SGLang have the same calls at different paths.
func adapterPath(s models.Server, call string) string {
	if s.Protocol == models.SGLang {
		return "/" + call
	}
	return "/v1/" + call
}

// saysAny reports whether the answer of a server has one of the texts.
func saysAny(err error, texts ...string) bool {
	return statusOf(err) != 0 && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(err.Error(), text) })
}

func (l *Loader) hasAdapter(ctx context.Context, s models.Server, name string) (bool, error) {
	held, err := l.listAdapters(ctx, s)
	for _, h := range held {
		if h.Name == name {
			return true, nil
		}
	}
	return false, err
}

// statusError is an answer that is not 200.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string { return e.message }

func (e *statusError) Is(target error) bool { return target == models.ErrRefused }

// notDoneError means that a server has answered, but has not done what the agent asked for.
type notDoneError string

func (e notDoneError) Error() string { return string(e) }

func (e notDoneError) Is(target error) bool { return target == models.ErrNotDone }

// takenError is the error of a load that the server took. It does not unwrap to the error of a later connection. Otherwise,
// the manager would conclude that the load did not reach the server, and would never blame the model for its end.
type takenError struct{ err error }

func (e takenError) Error() string { return e.err.Error() }

func (e takenError) Is(target error) bool { return errors.Is(e.err, target) }

// taken returns err as a takenError, or nil.
func taken(err error) error {
	if err == nil {
		return nil
	}
	return takenError{err}
}

// statusOf returns the status of a statusError, or 0.
func statusOf(err error) int {
	if known := (*statusError)(nil); errors.As(err, &known) {
		return known.status
	}
	return 0
}

// request is a call of a server.
type request struct {
	method, path string
	// body is sent as JSON, unless it is nil.
	body any
	// most is the maximum size of the answer, in bytes. Default: maxAnswer.
	most int
	// within is the maximum time of the call. 0: as long as the caller's context lasts.
	within time.Duration
}

// noAnswerError means that a server did not answer in time.
type noAnswerError struct {
	path   string
	within time.Duration
}

func (e *noAnswerError) Error() string {
	return fmt.Sprintf("the server did not answer %s within %s", e.path, e.within)
}

func (e *noAnswerError) Is(target error) bool { return target == context.DeadlineExceeded }

// call calls a server. The error of an answer that is not 200 is a *statusError.
func (l *Loader) call(ctx context.Context, s models.Server, q request) ([]byte, error) {
	if q.within > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, q.within, &noAnswerError{q.path, q.within})
		defer cancel()
		ctx = limited
	}
	answer, err := l.exchangeWith(ctx, s, q)
	if late := (*noAnswerError)(nil); err != nil && statusOf(err) == 0 && errors.As(context.Cause(ctx), &late) {
		return nil, late
	}
	return answer, err
}

func (l *Loader) exchangeWith(ctx context.Context, s models.Server, q request) ([]byte, error) {
	var content io.Reader
	if q.body != nil {
		data, err := json.Marshal(q.body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, "http://"+s.Address+q.path, content)
	if err != nil {
		return nil, err
	}
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := l.Client.Do(req)
	if err != nil {
		if known := (*url.Error)(nil); errors.As(err, &known) {
			err = known.Err
		}
		return nil, err
	}
	defer res.Body.Close()
	most := cmp.Or(q.most, maxAnswer)
	if res.StatusCode != http.StatusOK {
		most = maxAnswer
	}
	answer, err := io.ReadAll(io.LimitReader(res.Body, int64(most)+1))
	switch {
	case res.StatusCode != http.StatusOK:
		return nil, &statusError{res.StatusCode, fmt.Sprintf("%s: %s", res.Status, messageIn(answer[:min(len(answer), most)]))}
	case err != nil:
		return nil, err
	case len(answer) > most:
		return nil, fmt.Errorf("its answer to %s has more than %d bytes", q.path, most)
	}
	return answer, nil
}

// messageIn returns the text in the body of an error, in the form of the Open Inference Protocol, of
// OpenAI or of SGLang's calls for adapters.
func messageIn(body []byte) string {
	var v struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		SGLang  string          `json:"error_message"`
	}
	text := string(body)
	if json.Unmarshal(body, &v) == nil {
		var nested struct {
			Message string `json:"message"`
		}
		switch {
		case json.Unmarshal(v.Error, &text) == nil:
		case json.Unmarshal(v.Error, &nested) == nil:
			text = nested.Message
		case v.Message != "":
			text = v.Message
		case v.SGLang != "":
			text = v.SGLang
		}
	}
	return strings.ToValidUTF8(strings.TrimSpace(text), "?")
}
