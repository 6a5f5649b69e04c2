package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// isJSON reports whether a file must be read as JSON. A YAML parser reads JSON, too, except for tabs and for
// characters that are written as two escapes.
func isJSON(data []byte) bool {
	decoder := json.NewDecoder(bytes.NewReader(data))
	var first json.RawMessage
	if decoder.Decode(&first) != nil || first[0] != '{' {
		return false
	}
	rest := bytes.TrimSpace(data[decoder.InputOffset():])
	return len(rest) == 0 || strings.ContainsRune(`{["`, rune(rest[0]))
}

// readJSON reads the value of a JSON file. A second value is an error.
func readJSON(data []byte) (*document, error) {
	r := jsonReader{document: document{lines: map[string]int{}}, data: data, decoder: json.NewDecoder(bytes.NewReader(data)), line: 1}
	r.decoder.UseNumber()
	v, err := r.readValue("", 0)
	if err != nil {
		return nil, err
	}
	r.root = v.(map[string]any) //nolint:forcetypeassert // isJSON requires an object
	if _, err := r.decoder.Token(); err == nil {
		return nil, fmt.Errorf("line %d: a second value begins: a file holds one app, so put it into a file of its own", r.currentLine())
	} else if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("after the first value: %w", err)
	}
	return &r.document, nil
}

type jsonReader struct {
	document
	data    []byte
	decoder *json.Decoder
	// line is the line of the byte at offset.
	line   int
	offset int64
}

// currentLine returns the line of the token that was read last.
func (r *jsonReader) currentLine() int {
	now := r.decoder.InputOffset()
	r.line += bytes.Count(r.data[r.offset:now], []byte("\n"))
	r.offset = now
	return r.line
}

func (r *jsonReader) readValue(path string, depth int) (any, error) {
	token, err := r.decoder.Token()
	if err != nil {
		return nil, err
	}
	r.lines[path] = r.currentLine()
	if depth > maxDepth {
		return nil, &fieldError{line: r.line, text: fmt.Sprintf("more than %d nested mappings and lists: no field is nested so deeply", maxDepth)}
	}
	switch token {
	case json.Delim('['):
		list := []any{}
		for r.decoder.More() {
			v, err := r.readValue(fmt.Sprintf("%s[%d]", path, len(list)), depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := r.decoder.Token()
		return list, err
	case json.Delim('{'):
		fields, lines := map[string]any{}, map[string]int{}
		for r.decoder.More() {
			key, err := r.decoder.Token()
			if err != nil {
				return nil, err
			}
			name, _ := key.(string)
			if first, twice := lines[name]; twice {
				return nil, &fieldError{path: joinPath(path, name), line: r.currentLine(), text: fmt.Sprintf("given twice, first in line %d: keep one of them", first)}
			}
			lines[name] = r.currentLine()
			if fields[name], err = r.readValue(joinPath(path, name), depth+1); err != nil {
				return nil, err
			}
		}
		_, err := r.decoder.Token()
		return fields, err
	}
	return token, nil
}
