package mysql

import (
	"fmt"
	"strconv"
	"sync"
)

// texts are buffers for statements. Without them, a large statement would leave several times its size as garbage
// while it grows.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// appendRow appends a row of values: the parts of its text, with an argument between two parts.
func appendRow(text []byte, parts []string, args []any) ([]byte, error) {
	for i, a := range args {
		text = append(text, parts[i]...)
		switch v := a.(type) {
		case string:
			text = appendQuoted(text, v)
		case []byte:
			if v == nil {
				text = append(text, "NULL"...)
				break
			}
			text = appendQuoted(append(text, "_binary"...), string(v))
		case int32:
			text = strconv.AppendInt(text, int64(v), 10)
		case int64:
			text = strconv.AppendInt(text, v, 10)
		case int:
			text = strconv.AppendInt(text, int64(v), 10)
		case bool:
			if v {
				text = append(text, '1')
			} else {
				text = append(text, '0')
			}
		default:
			return nil, fmt.Errorf("a value of type %T", a)
		}
	}
	return append(text, parts[len(parts)-1]...), nil
}

// escapes has, for each byte with a meaning in a quoted text, the character that follows the backslash. Open
// sets a character set in which no multi-byte character contains one of these bytes. It also sets a mode in
// which a backslash escapes.
var escapes = [256]byte{0: '0', '\n': 'n', '\r': 'r', 0x1a: 'Z', '\'': '\'', '"': '"', '\\': '\\'}

func appendQuoted(text []byte, s string) []byte {
	text = append(text, '\'')
	from := 0
	for i := range len(s) {
		if e := escapes[s[i]]; e != 0 {
			text = append(append(text, s[from:i]...), '\\', e)
			from = i + 1
		}
	}
	return append(append(text, s[from:]...), '\'')
}
