package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
)

// routed returns the weights with which a region serves the app, by deployment, from its agent's log.
func (s *stack) routed(region, appID string) (map[string]int32, error) {
	log := s.routeLogs[region]
	if log == nil {
		return nil, fmt.Errorf("the stack has no agent in %s", region)
	}
	return log.weights(appID)
}

// routeLog follows the log of an agent. Tests ask for routes many times a second, so it reads only what
// was added since.
type routeLog struct {
	path string

	mu   sync.Mutex
	read int64 // bytes of the file, up to the end of a line
	last map[string]servedRoute
}

// servedRoute is a line of the log.
type servedRoute struct {
	App               string
	Epoch, Generation int64
	Weights           map[string]int32
}

// weights returns the app's weights above zero, by deployment.
func (l *routeLog) weights(appID string) (map[string]int32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.follow(); err != nil {
		return nil, err
	}
	weights := maps.Clone(l.last[appID].Weights)
	if weights == nil {
		weights = map[string]int32{}
	}
	maps.DeleteFunc(weights, func(_ string, weight int32) bool { return weight <= 0 })
	return weights, nil
}

func (l *routeLog) follow() error {
	file, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() < l.read {
		l.read = 0 // a restarted agent renames a large file and begins a new one
	}
	added, err := io.ReadAll(io.NewSectionReader(file, l.read, info.Size()-l.read))
	if err != nil {
		return err
	}
	added = added[:bytes.LastIndexByte(added, '\n')+1]
	for line := range bytes.Lines(added) {
		if !bytes.Contains(line, []byte(`"msg":"serving routes"`)) {
			continue
		}
		var r servedRoute
		if err := json.Unmarshal(line, &r); err != nil {
			return err
		}
		if last := l.last[r.App]; r.Epoch > last.Epoch || r.Epoch == last.Epoch && r.Generation >= last.Generation {
			l.last[r.App] = r
		}
	}
	l.read += int64(len(added))
	return nil
}
