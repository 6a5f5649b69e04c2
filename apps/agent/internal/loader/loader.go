package loader

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/models"
)

const (
	// maxAnswer bounds an answer of a server. An index of 10,000 models has about 1 MiB.
	maxAnswer = 8 << 20
	// maxMessage bounds what is taken over of an error.
	maxMessage = 512
	// readyAtOnce is how many models of a server are asked at a time whether they are ready, and readyEach how many
	// for each question to the server. The models take turns.
	readyAtOnce = 8
	readyEach   = 64
	// pause is the time between two looks at a model that is not ready yet, or not unloaded.
	pause = 100 * time.Millisecond
	// patience is how long a loaded model may take to be ready, and an unloaded one to be gone.
	patience = time.Minute
)

// Loader calls servers of models. It is safe for concurrent use.
type Loader struct {
	// Client calls servers. It must connect to addresses of instances alone, and have no timeout of its own.
	Client *http.Client

	mu sync.Mutex
	// turns has, by server, the model from which the next are asked whether they are ready.
	turns map[string]int
}

var _ models.Loader = (*Loader)(nil)

// Held implements models.Loader.
func (l *Loader) Held(ctx context.Context, s models.Server) ([]models.Held, error) {
	if s.Protocol == models.LoRA {
		return l.adapters(ctx, s)
	}
	index, err := l.index(ctx, s)
	if err != nil {
		return nil, err
	}
	var held []models.Held
	var ready []int
	for _, m := range index {
		switch m.State {
		case "READY":
			ready = append(ready, len(held))
			held = append(held, models.Held{Name: m.Name, Ready: true})
		case "LOADING", "UNLOADING":
			held = append(held, models.Held{Name: m.Name})
		}
	}
	slots := make(chan struct{}, readyAtOnce)
	var asking sync.WaitGroup
	for _, i := range l.turn(s.ID, ready) {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			// A server that does not answer this says nothing about the model.
			if ok, err := l.isReady(ctx, s, held[i].Name); err == nil {
				held[i].Ready = ok
			}
		})
	}
	asking.Wait()
	return held, nil
}

// turn returns the next readyEach of the items.
func (l *Loader) turn(server string, items []int) []int {
	if len(items) <= readyEach {
		return items
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.turns == nil {
		l.turns = map[string]int{}
	}
	from := l.turns[server] % len(items)
	l.turns[server] = from + readyEach
	return append(items[from:len(items):len(items)], items[:from]...)[:readyEach]
}

// Load implements models.Loader.
func (l *Loader) Load(ctx context.Context, s models.Server, m models.Model) error {
	if s.Protocol == models.LoRA {
		return l.loadAdapter(ctx, s, m)
	}
	if _, err := l.call(ctx, s, http.MethodPost, "/v2/repository/models/"+url.PathEscape(m.Name)+"/load", map[string]any{}); err != nil {
		return fmt.Errorf("the server did not load it: %w", err)
	}
	return wait(ctx, "the server has loaded it, and says that it is not ready", func(ctx context.Context) (bool, error) { return l.isReady(ctx, s, m.Name) })
}

// Unload implements models.Loader.
func (l *Loader) Unload(ctx context.Context, s models.Server, m models.Model) error {
	if s.Protocol == models.LoRA {
		return l.unloadAdapter(ctx, s, m)
	}
	if _, err := l.call(ctx, s, http.MethodPost, "/v2/repository/models/"+url.PathEscape(m.Name)+"/unload", map[string]any{}); err != nil && statusOf(err) != http.StatusNotFound {
		return fmt.Errorf("the server did not unload it: %w", err)
	}
	return wait(ctx, "the server has not unloaded it", func(ctx context.Context) (bool, error) {
		index, err := l.index(ctx, s)
		for _, held := range index {
			if held.Name == m.Name && held.State != "UNAVAILABLE" && held.State != "" {
				return false, err
			}
		}
		return true, err
	})
}

// wait looks until done is true, for patience at most.
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
			return errors.New(otherwise)
		}
	}
}

type indexEntry struct{ Name, State string }

func (l *Loader) index(ctx context.Context, s models.Server) ([]indexEntry, error) {
	answer, err := l.call(ctx, s, http.MethodPost, "/v2/repository/index", map[string]any{})
	if err != nil {
		return nil, err
	}
	var index []indexEntry
	if err := json.Unmarshal(answer, &index); err != nil {
		return nil, fmt.Errorf("the server's index of models is no list: %w", err)
	}
	return index, nil
}

// isReady reports whether a server says that a model is ready.
func (l *Loader) isReady(ctx context.Context, s models.Server, name string) (bool, error) {
	_, err := l.call(ctx, s, http.MethodGet, "/v2/models/"+url.PathEscape(name)+"/ready", nil)
	if status := statusOf(err); status >= 400 && status < 600 {
		return false, nil
	}
	return err == nil, err
}

// adapters lists the adapters of a server. The list of models has them with the model whose adapters they are.
func (l *Loader) adapters(ctx context.Context, s models.Server) ([]models.Held, error) {
	answer, err := l.call(ctx, s, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return nil, err
	}
	var list struct {
		Data []struct{ ID, Parent string }
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		return nil, fmt.Errorf("the server's list of models cannot be read: %w", err)
	}
	var held []models.Held
	for _, m := range list.Data {
		if m.Parent != "" {
			held = append(held, models.Held{Name: m.ID, Ready: true})
		}
	}
	return held, nil
}

func (l *Loader) loadAdapter(ctx context.Context, s models.Server, m models.Model) error {
	if m.Path == "" {
		return errors.New("an adapter needs model.path, from which the server loads it")
	}
	_, err := l.call(ctx, s, http.MethodPost, "/v1/load_lora_adapter", map[string]any{"lora_name": m.Name, "lora_path": m.Path})
	if err != nil && !strings.Contains(err.Error(), "already been loaded") {
		return fmt.Errorf("the server did not load it: %w", err)
	}
	// The answer is not believed: a server may say that it has loaded an adapter and not serve it.
	return wait(ctx, "the server has loaded it, and does not list it", func(ctx context.Context) (bool, error) { return l.hasAdapter(ctx, s, m.Name) })
}

func (l *Loader) unloadAdapter(ctx context.Context, s models.Server, m models.Model) error {
	_, err := l.call(ctx, s, http.MethodPost, "/v1/unload_lora_adapter", map[string]any{"lora_name": m.Name})
	if err != nil && statusOf(err) != http.StatusNotFound {
		return fmt.Errorf("the server did not unload it: %w", err)
	}
	return wait(ctx, "the server still lists it", func(ctx context.Context) (bool, error) {
		has, err := l.hasAdapter(ctx, s, m.Name)
		return !has, err
	})
}

func (l *Loader) hasAdapter(ctx context.Context, s models.Server, name string) (bool, error) {
	held, err := l.adapters(ctx, s)
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

// statusOf returns the status of a statusError, or 0.
func statusOf(err error) int {
	if known := (*statusError)(nil); errors.As(err, &known) {
		return known.status
	}
	return 0
}

// call calls a server. body is sent as JSON, unless it is nil.
func (l *Loader) call(ctx context.Context, s models.Server, method, path string, body any) ([]byte, error) {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.Address+path, content)
	if err != nil {
		return nil, err
	}
	if body != nil {
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
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case res.StatusCode != http.StatusOK:
		return nil, &statusError{res.StatusCode, fmt.Sprintf("%s: %s", res.Status, message(answer))}
	case err != nil:
		return nil, err
	case len(answer) > maxAnswer:
		return nil, fmt.Errorf("its answer to %s has more than %d bytes", path, maxAnswer)
	}
	return answer, nil
}

// message returns the text of an error's body, in the forms of the Open Inference Protocol and of OpenAI.
func message(body []byte) string {
	var v struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
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
		}
	}
	text = strings.ToValidUTF8(strings.TrimSpace(text), "?")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
	}
	return text
}
