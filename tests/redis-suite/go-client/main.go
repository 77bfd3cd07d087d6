// Uses a server with go-redis as programs do, and ends with status 1 at the first reply that is not as expected.
//
//	go run . ADDRESS
//	go run . cluster ADDRESS
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// check ends the program unless there is no error and the values are equal.
func check(what string, err error, got, expected any) {
	if err == nil && reflect.DeepEqual(got, expected) {
		return
	}
	_, _, line, _ := runtime.Caller(1)
	fmt.Printf("line %d: %s: got %#v, error %v; expected %#v\n", line, what, got, err, expected)
	os.Exit(1)
}

func main() {
	if os.Args[1] == "cluster" {
		cluster(os.Args[2])
		return
	}
	for _, protocol := range []int{2, 3} {
		client := redis.NewClient(&redis.Options{Addr: os.Args[1], Protocol: protocol})
		check("FlushAll", client.FlushAll(ctx).Err(), nil, nil)
		hello(client, protocol)
		stringsAndNumbers(client)
		expiry(client)
		pipeline(client)
		transactions(client)
		counters(client)
		scan(client)
		failures(client)
		check("Close", client.Close(), nil, nil)
	}
}

func hello(client *redis.Client, protocol int) {
	connection := client.Conn()
	defer connection.Close()
	reply, err := connection.Hello(ctx, protocol, "", "", "go").Result()
	check("Hello", err, reply["proto"], int64(protocol))
	name, err := connection.ClientGetName(ctx).Result()
	check("ClientGetName", err, name, "go")
}

func stringsAndNumbers(client *redis.Client) {
	check("Set", client.Set(ctx, "colour", "blue", 0).Err(), nil, nil)
	value, err := client.Get(ctx, "colour").Result()
	check("Get", err, value, "blue")
	_, err = client.Get(ctx, "absent").Result()
	check("Get of an absent key", nil, err, redis.Nil)
	is_set, err := client.SetNX(ctx, "colour", "red", 0).Result()
	check("SetNX", err, is_set, false)
	old, err := client.SetArgs(ctx, "colour", "green", redis.SetArgs{Get: true}).Result()
	check("Set with Get", err, old, "blue")
	check("MSet", client.MSet(ctx, "a", "1", "b", "\x00\r\n\xff").Err(), nil, nil)
	values, err := client.MGet(ctx, "a", "absent", "b").Result()
	check("MGet", err, values, []any{"1", nil, "\x00\r\n\xff"})
	length, err := client.Append(ctx, "colour", "ish").Result()
	check("Append", err, length, int64(8))
	part, err := client.GetRange(ctx, "colour", -3, -1).Result()
	check("GetRange", err, part, "ish")
	number, err := client.IncrBy(ctx, "number", 41).Result()
	check("IncrBy", err, number, int64(41))
	decimal, err := client.IncrByFloat(ctx, "number", 0.5).Result()
	check("IncrByFloat", err, decimal, 41.5)
	deleted, err := client.Del(ctx, "a", "b", "absent").Result()
	check("Del", err, deleted, int64(2))
}

func expiry(client *redis.Client) {
	check("Set", client.Set(ctx, "short", "x", 100*time.Second).Err(), nil, nil)
	left, err := client.TTL(ctx, "short").Result()
	check("TTL", err, left > 90*time.Second && left <= 100*time.Second, true)
	is_changed, err := client.PExpire(ctx, "short", time.Millisecond).Result()
	check("PExpire", err, is_changed, true)
	// A generous deadline, as the machine may be busy.
	for deadline := time.Now().Add(time.Minute); client.Get(ctx, "short").Err() != redis.Nil; {
		if time.Now().After(deadline) {
			check("the key's end", errors.New("it has not expired"), nil, nil)
		}
	}
}

func pipeline(client *redis.Client) {
	const count = 10000
	replies, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := 0; i < count; i++ {
			pipe.Set(ctx, "pipe:"+strconv.Itoa(i), i, 0)
			pipe.Get(ctx, "pipe:"+strconv.Itoa(i))
		}
		return nil
	})
	check("Pipelined", err, len(replies), 2*count)
	for i := 0; i < count; i++ {
		value, err := replies[2*i+1].(*redis.StringCmd).Int()
		check("a Get in a pipeline", err, value, i)
	}
}

func transactions(client *redis.Client) {
	replies, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "colour", "blue", 0)
		pipe.StrLen(ctx, "colour")
		return nil
	})
	check("TxPipelined", err, replies[1].(*redis.IntCmd).Val(), int64(4))
	err = client.Watch(ctx, func(tx *redis.Tx) error {
		// Another connection changes the key.
		if err := client.Set(ctx, "colour", "red", 0).Err(); err != nil {
			return err
		}
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, "colour", "green", 0)
			return nil
		})
		return err
	}, "colour")
	check("Watch", nil, err, redis.TxFailedErr)
	value, err := client.Get(ctx, "colour").Result()
	check("Get", err, value, "red")
}

// counters lets several goroutines add to one key by WATCH, GET and SET, and loses none.
func counters(client *redis.Client) {
	const goroutines, times = 8, 100
	var all sync.WaitGroup
	for i := 0; i < goroutines; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for done := 0; done < times; {
				err := client.Watch(ctx, func(tx *redis.Tx) error {
					count, err := tx.Get(ctx, "count").Int()
					if err != nil && err != redis.Nil {
						return err
					}
					_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
						pipe.Set(ctx, "count", count+1, 0)
						return nil
					})
					return err
				}, "count")
				switch err {
				case nil:
					done++
				case redis.TxFailedErr:
				default:
					check("Watch", err, nil, nil)
				}
			}
		}()
	}
	all.Wait()
	count, err := client.Get(ctx, "count").Int()
	check("the sum", err, count, goroutines*times)
}

func scan(client *redis.Client) {
	keys, expected := map[string]bool{}, []string{}
	found := client.Scan(ctx, 0, "pipe:12*", 100).Iterator()
	for found.Next(ctx) {
		keys[found.Val()] = true
	}
	check("Scan", found.Err(), nil, nil)
	for i := 0; i < 10000; i++ {
		if key := strconv.Itoa(i); len(key) >= 2 && key[:2] == "12" {
			expected = append(expected, "pipe:"+key)
		}
	}
	got := []string{}
	for key := range keys {
		got = append(got, key)
	}
	sort.Strings(got)
	sort.Strings(expected)
	check("Scan", nil, got, expected)
	size, err := client.DBSize(ctx).Result()
	check("DBSize", err, size > 10000, true)
}

func failures(client *redis.Client) {
	err := client.Incr(ctx, "colour").Err()
	check("Incr of a text", nil, err.Error(), "ERR value is not an integer or out of range")
	err = client.Do(ctx, "no-such-command", "x").Err()
	check("an unknown command", nil, strings.HasPrefix(err.Error(), "ERR unknown command"), true)
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "colour", "green", 0)
		pipe.Incr(ctx, "colour")
		pipe.Set(ctx, "after", "done", 0)
		return nil
	})
	check("Incr in a transaction", nil, strings.HasPrefix(err.Error(), "ERR value is not an integer"), true)
	value, err := client.Get(ctx, "after").Result()
	check("Get", err, value, "done")
}
