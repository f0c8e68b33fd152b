// Where the page begins: one line to the agent, one frame.

import { mount } from 'svelte';
import App from './App.svelte';
import { Agent } from './agent/agent.svelte';
import './style/tokens.css';
import './style/base.css';
import { chooseTransport } from './transport/choose';

const target = document.getElementById('app');
if (target === null) throw new Error('index.html has no #app');

const agent = new Agent(chooseTransport());
mount(App, { target, props: { agent } });
void agent.run(new AbortController().signal);
