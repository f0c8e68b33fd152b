// Server-sent events from a response's body, as the agent writes them. `EventSource` cannot send the agent's key, so it is
// read here; what an event means is not known here.

/** No event of the agent comes near this; more is not waited for. */
const EVENT_LIMIT = 4 << 20;

/** The data of each event. Comments (the agent's signs of life) and other fields are passed over. */
export async function* dataOf(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let waiting = '';
  let data: string[] = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      waiting += decoder.decode(value, { stream: true });
      if (waiting.length > EVENT_LIMIT) throw new Error('an event is larger than 4 MiB');
      const lines = waiting.split(/\r\n|\n|\r(?!$)/);
      waiting = lines.pop() ?? '';
      for (const line of lines) {
        if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''));
        else if (line === '' && data.length > 0) {
          yield data.join('\n');
          data = [];
        }
      }
    }
  } finally {
    // Leaving early must close the connection, or the agent keeps a reader that nobody reads.
    await reader.cancel().catch(() => undefined);
  }
}
